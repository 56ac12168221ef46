"""What the pool and its policies keep for each block, compiled: `csrc/` has the source.

The keys of all tables are hashable, distinct and immutable, and each call takes a batch of them. A batch that fails, because
a key is missing or cannot be hashed or compared, has changed nothing. A key that is named twice in a batch counts once,
unless said otherwise.

Nothing here is visited by the garbage collector: a key that refers to the table it is in is never collected. Copies share
the keys. One thread at a time; a table refuses, with a RuntimeError, to be changed or copied by the `__hash__`, `__eq__` or
`__del__` of a key that it is busy with, and to be used by another thread meanwhile.
"""

from array import array
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvloft.request import Key

Answer = TypeVar("Answer")
AnyRun = TypeVar("AnyRun", bound=Run)

def distinct(keys: Iterable[Key]) -> list[Key]:
    """Each of the keys once, in the order in which they come first. Always a new list."""

def exchange(table: NDArray[np.int64], places: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Put each value into its place of the table, one after the other, and leave there what it finds: of a place named
    twice the second finds the first's.

    Raises:
        ValueError: they are no arrays of int64, or not as many values as places.
        IndexError: a place is not in the table; then nothing has changed.
    """

def untracked(keys: Iterable[Key]) -> tuple[Key, ...]:
    """The keys in a tuple that the garbage collector does not visit, if none of the keys is one that it would."""

def ascending(values: Iterable[int | None]) -> bool:
    """Whether no value is less than the one before it, and none is None.

    Raises:
        OverflowError: one has more than 64 bits.
    """

class Index:
    """Which block is in which of `capacity` slots, and what it is used for.

    A block is written until it has landed, and may then be pinned by readers; whoever does not, may drop it. Slots are
    handed out in ascending order while there are fresh ones, but before these the one given back last: after a chain has
    left tail first, one that takes its place is again in order. A slot may be away: it holds no block and is not free.

    Memory: 16 bytes a slot, and 12 for finding it.

    Raises:
        ValueError: the capacity is negative or above 2^30.
    """

    free: int
    """Slots that hold nothing and may be taken."""
    writing: int
    """Blocks that have not landed."""
    pinned: int
    """Blocks that have readers."""
    away: int
    """Slots between `drop` and `reclaim`."""

    def __new__(cls, capacity: int) -> Index: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: Key) -> bool: ...
    def __iter__(self) -> Iterator[Key]:
        """All blocks that are there now, in the order of their slots."""

    def __copy__(self) -> Index: ...
    def __deepcopy__(self, memo: object) -> Index: ...
    def answers(self, miss: Answer, pending: Answer, hit: Answer) -> Callable[..., Answer]:
        """What tells one key after another: `miss` if the block is not there, `pending` if it is being written, else `hit`.
        Further arguments are ignored."""

    def state(self, key: Key) -> int:
        """0 if the block is not there, 1 if it is being written, else 2."""

    def leading(self, keys: Iterable[Key]) -> int:
        """Length of the leading run of keys whose blocks are there and not being written."""

    def present(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys whose blocks are there, in the order given, as often as given."""

    def absent(self, keys: Iterable[Key]) -> list[Key]:
        """The others, likewise."""

    def ready(self, keys: Iterable[Key]) -> list[Key]:
        """Those whose blocks are there and not being written, likewise."""

    def busy(self) -> list[Key]:
        """Blocks that are being written or have readers, in no order."""

    def slots(self, keys: Iterable[Key]) -> array[int]:
        """Where the blocks are, one slot a key.

        Raises:
            KeyError: one is not there.
        """

    def take(self, keys: Iterable[Key]) -> array[int]:
        """Begin to write blocks. Returns where, one slot a key.

        Raises:
            ValueError: one is there already or named twice, or too few slots are free.
        """

    def land(self, keys: Iterable[Key]) -> None:
        """Blocks have been written.

        Raises:
            KeyError: one is not there.
        """

    def drop(self, keys: Iterable[Key], away: bool = False) -> array[int]:
        """Blocks leave. Returns where they were, one slot a key; these are free now, or else away.

        Raises:
            KeyError: one is not there.
        """

    def reclaim(self, slots: Iterable[int]) -> None:
        """Slots come back, those of them that were away.

        Raises:
            ValueError: one is no slot.
        """

    def pin(self, keys: Iterable[Key]) -> array[int] | None:
        """Give each block one reader more, as often as it is named. Returns where they are, one slot a key; None if one is
        not there or not written yet, and then none has got a reader."""

    def unpin(self, keys: Iterable[Key]) -> None:
        """Take one reader from each block that has any, as often as it is named.

        Raises:
            KeyError: one is not there.
        """

    def clear(self, away: Iterable[int] = ()) -> None:
        """All blocks leave. These slots are away, and those that were.

        Raises:
            ValueError: one is no slot.
        """

class Queues:
    """Distinct keys, each in one of a few queues, from the least to the most recent.

    Memory: 16 bytes a key, and 12 to 18 for finding it, as soon as there is room for it.

    Args:
        room: keys for which memory is set aside. For more it is made in one step, which takes the longer the more there are.
        queues: how many, from 1 to 4; counted from 0.

    Raises:
        ValueError: one of them is out of range; so is `queue` in the calls below.
    """

    def __new__(cls, room: int = 0, queues: int = 1) -> Queues: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: Key) -> bool: ...
    def __copy__(self) -> Queues: ...
    def __deepcopy__(self, memo: object) -> Queues: ...
    def queue(self, key: Key) -> int | None:
        """Which queue a key is in, None if in none."""

    def size(self, queue: int) -> int:
        """Keys in one queue."""

    def keys(self, queue: int = 0) -> list[Key]:
        """Those of one queue, the least recent first."""

    def present(self, keys: Iterable[Key], queue: int = ...) -> list[Key]:
        """Those of the keys that are in a queue, in the one named or in any; in the order given, as often as given."""

    def absent(self, keys: Iterable[Key]) -> list[Key]:
        """Those that are in none, likewise."""

    def oldest(self, n: int, keep: Collection[Any], queue: int = 0) -> list[Key]:
        """The n least recent keys of a queue that are not in `keep`, or as many as there are. They stay in."""

    def newest(self, queue: int = 0) -> Key | None:
        """The most recent key of a queue, None if it is empty."""

    def add(self, keys: Iterable[Key], queue: int = 0) -> None:
        """Put keys at the recent end of a queue, the last one last. What is in any queue stays where it is."""

    def touch(self, keys: Iterable[Key]) -> None:
        """Move keys to the recent ends of their queues, the last one last.

        Raises:
            KeyError: one is in no queue.
        """

    def move(self, keys: Iterable[Key], queue: int) -> None:
        """Move keys to the recent end of one queue, the last one last, wherever they were.

        Raises:
            KeyError: one is in no queue.
        """

    def lift(self, keys: Iterable[Key], queue: int) -> array[int]:
        """Move keys to the recent end of one queue, each leaving a gap where it was. A gap counts nowhere.

        Returns:
            The gaps, one a key.

        Raises:
            KeyError: one is in no queue.
        """

    def put_back(self, keys: Iterable[Key], gaps: Iterable[int]) -> None:
        """Move keys to where these gaps are, which are closed by that.

        Raises:
            KeyError: one is in no queue.
            ValueError: one is no gap, or there are not as many gaps as keys.
        """

    def close(self, gaps: Iterable[int]) -> None:
        """Nothing will come back to these gaps.

        Raises:
            ValueError: one is no gap.
        """

    def remove(self, keys: Iterable[Key]) -> None:
        """Take keys out.

        Raises:
            KeyError: one is in no queue.
        """

    def clear(self) -> None:
        """Take all keys out."""

class Homes:
    """A number for each of distinct keys: that of the segment it is in.

    Memory: 16 bytes a key, and 12 to 18 for finding it, as soon as there is room for it.

    Args:
        room: keys for which memory is set aside. For more it is made in one step, which takes the longer the more there are.
        touch: whether that memory is taken from the system now; otherwise when it is first used, by the page.

    Raises:
        ValueError: the room is negative or above 2^30.
    """

    def __new__(cls, room: int = 0, touch: bool = True) -> Homes: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: Key) -> bool: ...
    def __iter__(self) -> Iterator[Key]:
        """All keys that are there now, in no order."""

    def __copy__(self) -> Homes: ...
    def __deepcopy__(self, memo: object) -> Homes: ...
    def __getitem__(self, key: Key) -> int:
        """A key's number.

        Raises:
            KeyError: it has none.
        """

    def get(self, key: Key) -> int | None:
        """A key's number, None if it has none."""

    def present(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys that have a number, in the order given, as often as given."""

    def absent(self, keys: Iterable[Key]) -> list[Key]:
        """The others, likewise."""

    def runs(self, keys: Iterable[Key]) -> list[tuple[int, int]]:
        """The numbers of the keys, in their order; each with how many keys in a row have it.

        Raises:
            KeyError: one has none.
        """

    def put(self, keys: Iterable[Key], number: int) -> None:
        """Give keys a number, whether they had one or not.

        Raises:
            OverflowError: the number has more than 64 bits.
        """

    def remove(self, keys: Iterable[Key]) -> None:
        """Keys have no number any more.

        Raises:
            KeyError: one had none.
        """

    def cut(self, segment: Run, n: int) -> list[Key]:
        """Take the last n blocks off a segment, which have no number any more; what they are, the last first.

        Raises:
            ValueError: it has fewer.
            KeyError: one had no number.
        """

    def along(self, chain: tuple[Key, ...], at: int, segments: dict[int, AnyRun]) -> tuple[list[AnyRun], int, int]:
        """The segments along a chain from its place `at` on, as far as it covers them from head to end, and the one after
        these; up to which place in that the two are the same, and up to which in the chain.

        Raises:
            KeyError: a key there has no number, or no segment has that number or this key.
        """

class Run:
    """A run of blocks that follow each other: what a segment of a chain is made of.

    Args:
        number: its name.
        keys: its blocks, head first.
        parent: the run whose last block comes before its first.
    """

    keys: tuple[Key, ...]
    """Resident blocks, head first."""
    parent: Self | None
    """The segment whose last block comes before this one's first; None: the head of a chain, or unknown."""
    live: int
    """Children with resident blocks."""
    owner: Hashable
    """The id of the request that is still storing it, in a tuple of one."""

    def __init__(self, number: int, keys: tuple[Key, ...], parent: Self | None) -> None: ...
    @property
    def number(self) -> int: ...
    def free(self, n: int, keep: Container[Key]) -> int:
        """How many of its last n blocks may leave: those behind the last one that is to be kept."""

class AgedRun(Run):
    """A run and what is known of its use. Times are numbers of requests."""

    kind: int
    """Its class."""
    last: int
    """When it was used last."""
    use: int
    """That use's number in `Uses`, -1 if there is none."""
    stamp: int
    """That use's number among those of whole chains; 0: it has not been used yet."""
    reads: int
    turn: int
    """How many tails of the same conversation lie before it."""
    ends: bool
    """Whether a request ended at its end, or one block behind it."""
    branches: int
    """Tails that were stored behind it, ..."""
    branches_reused: int
    """... and how many of them were used again."""
    committed: bool
    origin: tuple[Self, int, int, int] | None
    """Until it has taught: the ghost that came back as this segment, how many blocks, its class and bin at that time."""

    @property
    def evicted(self) -> int:
        """Blocks that followed its resident ones and are known to `Ghosts`."""

    @property
    def size(self) -> int:
        """Its blocks, resident and evicted."""

class Ages:
    """The leaves, which end a resident chain, by class, stage of age and last use; and the clock, which counts requests.

    Ages fall in bins, bins in stages. Within a stage the index of an age counts as no higher than that of a younger one, so
    of each class and stage only the leaf that was used longest ago can be the next to leave. What grows older costs next to
    nothing: O(log n) when it gets into another stage.

    Args:
        classes: how many classes there are, up to 127.
        edges: ages at which bins end, ascending; the last bin has no end.
        stages: bins that begin a stage, but for the first, ascending.

    Raises:
        ValueError: one of them is out of range.
    """

    def __new__(cls, classes: int, edges: Sequence[int], stages: Sequence[int]) -> Ages: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Ages:
        """With copies of the leaves."""

    @property
    def clock(self) -> int:
        """Requests so far."""

    def tick(self) -> None:
        """One request more."""

    def bin(self, segment: AgedRun) -> int:
        """The bin of a segment's age now."""

    def index(self, segment: AgedRun) -> float:
        """The index of a segment's class and age now, as given to `rank`.

        Raises:
            ValueError: there is no such class.
        """

    def put(self, segment: AgedRun) -> None:
        """A segment may end a resident chain now or no more, or is of another class or age. If it ends one, it is a leaf.

        Raises:
            ValueError: its class or its last use is out of range, or it is a leaf of other ages.
        """

    def take(self) -> Any:
        """Take out the leaf of the lowest index, of that class and stage the one used longest ago; None if there is no
        leaf."""

    def take_before(self, time: int) -> Any:
        """The same of the leaves used before a time."""

    def take_oldest(self) -> Any:
        """Take out the leaf used longest ago; None if there is no leaf."""

    def rank(self, index: NDArray[np.float64]) -> None:
        """Order classes and bins by a new index, [classes, bins].

        Raises:
            ValueError: it has another shape or type.
        """

    def leaves(self) -> list[Any]:
        """All leaves, in no order."""

class Uses:
    """Uses of segments in their order: it counts which segments are used again, and which become too old for a bin without
    being used, resident or not. O(1) a use, 16 bytes until it is older than any bin.

    Args:
        ages: has the clock, the classes and bins, and the leaves.

    Raises:
        ValueError: the class of a segment is out of range, or its size.
    """

    def __new__(cls, ages: Ages) -> Uses: ...
    def __len__(self) -> int:
        """Uses that are kept."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Uses:
        """With a copy of the ages."""

    def begin(self, segment: AgedRun) -> None:
        """A segment was used now, which becomes its `last`. If it ends a chain, it is a leaf of that age."""

    def change(self, segment: AgedRun) -> None:
        """Its class or size are others now."""

    def again(self, path: Sequence[AgedRun], stored: Container[Key], kinds: tuple[int, ...]) -> tuple[int, int]:
        """A request used these segments, head to tail. It has read them once more, but for those that it stored itself.

        Args:
            path: the segments. Nobody stores into them any more.
            stored: keys that it stored. If a segment's first one is among them, or if it has none and was never used, it was
                not read.
            kinds: the class of a segment that was read 0, 1, 2, ... times; the last also if that was more often.

        Returns:
            How many resident blocks were read, and how many blocks there are, evicted ones included.
        """

    def end(self, segment: AgedRun) -> None:
        """It is gone. Bins that it left since the last look are made up for."""

    def reuse(self, kind: int, bin: int, blocks: int) -> None:
        """Blocks of a class were used again at an age in this bin."""

    def look(self) -> None:
        """Count what has left a bin since the last look."""

    def take(self) -> bytes:
        """What was counted since the last call: blocks that were used again, blocks that left a bin unused, and how many
        segments both were; 64 bits each, [3, classes, bins]."""

class Ghosts:
    """Blocks that were evicted, by segment: the hashes, 8 bytes each, of those that followed its resident ones.

    Raises:
        ValueError: a segment is among other ghosts, or has not as many blocks.
    """

    def __new__(cls) -> Ghosts: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Ghosts:
        """With copies of the segments."""

    @property
    def blocks(self) -> int:
        """Evicted blocks of all segments."""

    def find(self, keys: Sequence[Key]) -> tuple[Any, int] | None:
        """The segment whose evicted blocks begin with the first key, and how many follow each other as the keys do. Of
        several it is the one that came to begin with it last."""

    def evict(self, segment: AgedRun, keys: Sequence[Key]) -> None:
        """A segment has lost more blocks, the last of them first, before those that it has lost already. It is the youngest
        ghost now."""

    def extend(self, segment: AgedRun, keys: Sequence[Key]) -> None:
        """Blocks come behind those that a segment has lost. If it had lost none, it is the youngest ghost."""

    def drop(self, segment: AgedRun, n: int) -> None:
        """Forget the first n evicted blocks of a segment, or all if there are fewer."""

    def part(self, segment: AgedRun, n: int, head: AgedRun) -> None:
        """The first n evicted blocks of a segment become those of another, which has none: the youngest ghost."""

    def oldest(self) -> Any:
        """The segment that was evicted from longest ago, None if there is none."""

    def segments(self) -> list[Any]:
        """All that have evicted blocks, the oldest ghost first."""

class ShadowLRU:
    """An LRU cache of the same size beside ours, and how far the two are apart.

    A use is a chain of blocks that a request used; uses are numbered from 1, and segments know the number of their latest,
    `stamp`. What has not been used since is the end of such a chain, so two numbers a use say what LRU still has of it, and
    what we have: both lose its tail first. 32 bytes a use.

    Args:
        capacity: in blocks.

    Raises:
        ValueError: a number of blocks is negative or above 2^30.
    """

    def __new__(cls, capacity: int) -> ShadowLRU: ...
    def __deepcopy__(self, memo: object) -> ShadowLRU: ...
    @property
    def apart(self) -> int:
        """Blocks that LRU has and we do not."""

    @property
    def oldest(self) -> int:
        """The oldest use of which LRU has anything."""

    @property
    def missed(self) -> float:
        """Of those that it had and we did not, how many were used, ..."""

    @property
    def spared(self) -> float:
        """... and how many it has lost unused, later than we."""

    def use(self, path: Sequence[AgedRun]) -> int:
        """Segments are used, from the head of a chain to its tail; how many of their blocks LRU had."""

    def lose(self, segment: AgedRun, blocks: int) -> None:
        """We lost so many of a segment's blocks."""

    def lacking(self, segment: AgedRun, more: int) -> int:
        """How many of the blocks last used with this segment's LRU has and we do not, once we lost so many more."""

    def regain(self, segment: AgedRun, blocks: int) -> None:
        """We have them again, because they were asked for."""

    def forget(self, segment: AgedRun, blocks: int, ours: int) -> None:
        """Blocks that nobody will ask for, or nobody would know if they did; so many of them we had."""

    def remember(self, blocks: float) -> None:
        """What was seen of more blocks than this fades."""
