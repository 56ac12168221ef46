"""Structures that several policies share: a sweep through a queue from its old end, and keys ordered by rank."""

from collections import OrderedDict
from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush
from itertools import filterfalse, islice
from types import TracebackType
from typing import Any, TypeAlias

from kvloft.request import Key

Queue: TypeAlias = OrderedDict[Key, None]
"""Keys from the oldest to the youngest."""


def oldest(queue: Iterable[Key], n: int, keep: Set[Key]) -> list[Key]:
    """The first n keys of a queue that are not in `keep`, or as many as there are."""
    return list(islice(filterfalse(keep.__contains__, queue), max(0, n)))


def trim(ghosts: "OrderedDict[Key, Any]", limit: int, returning: Set[Key]) -> list[Key]:
    """Forget the oldest ghosts, so that `limit` are left beside those that are on their way back; which were forgotten."""
    surplus = len(ghosts) - limit
    if surplus <= 0:
        return []
    surplus -= sum(map(ghosts.__contains__, returning))
    dropped = oldest(ghosts, surplus, returning)
    for key in dropped:
        del ghosts[key]
    return dropped


class Sweep:
    """Takes keys out of a queue from its old end, passing over those in `keep`; these are in their old place afterwards.

    The queue may grow at its young end meanwhile, so a policy can put back there what it takes here.
    """

    def __init__(self, queue: Queue, keep: Set[Key]) -> None:
        self._queue = queue
        self._keep = keep
        self._passed: list[Key] = []

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for key in reversed(self._passed):
            self._queue[key] = None
            self._queue.move_to_end(key, last=False)
        self._passed.clear()

    def __len__(self) -> int:
        """Keys in the queue, those passed over included."""
        return len(self._queue) + len(self._passed)

    def take(self) -> "tuple[Key, Sweep] | None":
        """The oldest key outside `keep`, and this sweep; None if there is none."""
        queue, keep = self._queue, self._keep
        while queue:
            key, _ = queue.popitem(last=False)
            if key not in keep:
                return key, self
            self._passed.append(key)
        return None


class Ranking:
    """Keys ordered by a whole-number rank, lowest first; among equals the one placed longest ago. O(log n) a placing.

    Ranks and ages are packed into plain integers, and outdated entries stay in the heap until they come up or are half
    of it, so nothing here costs the garbage collector time by the key.
    """

    _AGES = 1 << 48

    def __init__(self) -> None:
        self._entry: dict[Key, int] = {}
        self._key: dict[int, Key] = {}
        self._heap: list[int] = []
        self._placed = 0
        self.taken_rank = 0
        """Rank of what was taken last."""

    def __len__(self) -> int:
        return len(self._entry)

    def rank(self, key: Key) -> int:
        """The rank given to a key that is placed."""
        return self._entry[key] // self._AGES

    def place(self, key: Key, rank: int) -> None:
        """Give a key its rank, as the youngest of that rank."""
        self.remove(key)
        self._placed += 1
        entry = rank * self._AGES + self._placed
        self._entry[key] = entry
        self._key[entry] = key
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + 64:
            self._heap = list(self._key)
            heapify(self._heap)

    def remove(self, key: Key) -> None:
        """Take a key out, if it is in."""
        entry = self._entry.pop(key, None)
        if entry is not None:
            del self._key[entry]

    def take(self, n: int, keep: Set[Key]) -> list[Key]:
        """Take out the n lowest keys outside `keep`, which the caller knows to exist."""
        taken: list[Key] = []
        passed: list[int] = []
        while len(taken) < n:
            entry = heappop(self._heap)
            key = self._key.get(entry, self)
            if key is self:
                continue
            if key in keep:
                passed.append(entry)
            else:
                self.remove(key)
                taken.append(key)
                self.taken_rank = entry // self._AGES
        for entry in passed:
            heappush(self._heap, entry)
        return taken

    def clear(self) -> None:
        """Take all keys out."""
        self._entry.clear()
        self._key.clear()
        self._heap.clear()
