"""Segments: runs of blocks that were stored together and are used together.

A tree of segments stands for all resident chains; each segment follows the end of its parent. There are about as many as
requests, so touching a prefix of thousands of blocks costs in segments, and no object is kept by the block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import filterfalse
from typing import Any, ClassVar, Generic, Self, TypeVar

from kvloft._table import Homes, Run, untracked
from kvloft.policies.base import Offer, Policy
from kvloft.request import Key, Request


class Segment(Run):
    """A run of blocks that follow each other."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ("parent", "owner", "live")
    """What a copy has of it, beside its number and its keys."""

    def grows(self, request: Request) -> bool:
        """Whether what this request stores behind its end becomes part of it."""
        return self.owner == (request.id,) and not self.live

    def inherit(self, whole: Self) -> None:
        """This is the head of `whole`, which was split and is its only child now."""
        self.owner = whole.owner
        self.live = 1 if whole.keys else 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin: Self = type(self)(self.number, self.keys, None)
        memo[id(self)] = twin
        for name in self.FIELDS:
            setattr(twin, name, deepcopy(getattr(self, name), memo))
        return twin


AnySegment = TypeVar("AnySegment", bound=Segment)


class ChainTree(Generic[AnySegment]):
    """All segments with resident blocks, and which block is in which.

    Blocks need not form a tree for this to work: a block belongs to the chain in which it was stored.

    Args:
        segment: the class of segments.
        room: resident blocks for which memory is set aside.
        touch: whether that memory is taken from the system now, or when it is first used.
    """

    def __init__(self, segment: type[AnySegment], room: int = 0, touch: bool = True) -> None:
        self._segment = segment
        self.segments: dict[int, AnySegment] = {}
        self.home = Homes(room, touch)
        """The number of each resident block's segment."""
        self.root = segment(-1, (), None)
        """Stands for what is before the head of every chain."""
        self._next = 0

    def of(self, key: Key) -> AnySegment | None:
        """The segment of a block, None if it is not resident."""
        number = self.home.get(key)
        return None if number is None else self.segments[number]

    def end_at(self, key: Key | None, split: Callable[[AnySegment, int], AnySegment]) -> AnySegment:
        """The segment that ends with this block, made by `split` if none does; the root if the block is not resident."""
        segment = self.of(key) if key is not None else None
        if segment is None:
            return self.root
        return segment if segment.keys[-1] == key else split(segment, segment.keys.index(key) + 1)

    def add(self, keys: Sequence[Key], parent: AnySegment) -> AnySegment:
        """A new segment behind the end of another."""
        segment = self._segment(self._next, untracked(keys), parent)
        self.segments[self._next] = segment
        self.home.put(segment.keys, self._next)
        self._next += 1
        return segment

    def extend(self, segment: AnySegment, keys: Sequence[Key]) -> None:
        """Blocks that follow the segment's last one become part of it."""
        segment.keys = untracked((*segment.keys, *keys))
        self.home.put(keys, segment.number)

    def split(self, segment: AnySegment, at: int) -> AnySegment:
        """Cut a segment in two before its block `at`; the head is a new segment, the given one becomes its child."""
        head = self.add(segment.keys[:at], segment.parent or self.root)
        segment.keys = untracked(segment.keys[at:])
        head.inherit(segment)
        segment.parent = head
        return head

    def drop(self, keys: Sequence[Key]) -> list[tuple[AnySegment, int]]:
        """Take blocks out wherever they are; the segments that have lost some, and how many."""
        lost: dict[int, set[Key]] = {}
        at = 0
        for number, count in self.home.runs(keys):
            lost.setdefault(number, set()).update(keys[at : at + count])
            at += count
        self.home.remove(keys)
        for number, gone in lost.items():
            segment = self.segments[number]
            head = segment.keys[: -len(gone)]
            if not gone.issuperset(segment.keys[len(head) :]):
                head = tuple(filterfalse(gone.__contains__, segment.keys))
            segment.keys = untracked(head)
        return [(self.segments[number], len(gone)) for number, gone in lost.items()]

    def remove(self, segment: AnySegment) -> None:
        """Forget a segment that has no resident block."""
        del self.segments[segment.number]

    def walk(self, chain: Sequence[Key]) -> Iterator[tuple[AnySegment, int]]:
        """The segments along a chain of resident blocks, each with the place in it up to which the chain goes. Each may be
        split there before the next is asked for."""
        chain = tuple(chain)
        at = 0
        while at < len(chain):
            segments, end, at = self.home.along(chain, at, self.segments)
            last = segments.pop()
            for segment in segments:
                yield segment, len(segment.keys)
            yield last, end


def runs(keys: Sequence[Key], offer: Offer) -> Iterable[tuple[Sequence[Key], Key | None]]:
    """Some blocks of an offer as runs that follow each other, each with the block before it."""
    if not keys:
        return ()
    at = len(offer.offered) - len(keys)
    if offer.offered[at:] == keys:
        return ((keys, offer.offered[at - 1] if at else offer.parent),)
    return _parted(keys, offer)


def _parted(keys: Sequence[Key], offer: Offer) -> Iterator[tuple[Sequence[Key], Key | None]]:
    new = {*keys}
    run: list[Key] = []
    before = parent = offer.parent
    for key in offer.offered:
        if key in new:
            if not run:
                before = parent
            run.append(key)
        elif run:
            yield run, before
            run = []
        parent = key
    if run:
        yield run, before


def stand_in(
    policy: Policy, chosen: Sequence[Key], could: Iterable[Key], before: Callable[[Key], Iterable[Key]]
) -> list[Key]:
    """Victims that leave nothing behind that needs them: blocks that a policy has spared, for those it chose before them.

    Args:
        policy: what has evicted; those it is to keep after all come back to it as new ones.
        chosen: its victims.
        could: what it could have had, tails before heads.
        before: by block: what must not leave before it, head first.
    """
    leaving = dict.fromkeys(chosen)
    gone: list[Key] = []
    back: list[Key] = []
    for key in [key for key in could if key not in leaving]:
        first = next(filter(leaving.__contains__, before(key)), None)
        if first is not None:
            del leaving[first]
            leaving[key] = None
            gone.append(key)
            back.append(first)
    if back:
        policy.forget(gone)
        nobody = Request(object())
        policy.admit(Offer(back, nobody, back))
        policy.finish((), frozenset(), nobody)
    return list(leaving)
