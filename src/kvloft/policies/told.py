"""Segments with what callers said of them, when that runs out, and which conversations had which blocks."""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self, cast

from kvloft._table import Homes, distinct
from kvloft.policies.chains import Segment
from kvloft.request import Key


class ToldSegment(Segment):
    """A segment and what callers said of it."""

    __slots__ = ("dead", "expires", "followers", "held_until", "leaves", "pinned_until", "session", "shared", "tenant")
    FIELDS = (*Segment.FIELDS, *__slots__)
    MANY = 64
    """So many different followers are not told apart."""

    def __init__(self, number: int, keys: tuple[Key, ...], parent: Self | None) -> None:
        super().__init__(number, keys, parent)
        self.followers: set[int] = set()
        """Hashes of the blocks that have come behind it and are not known to be dead."""
        self.dead = False
        self.leaves = ""
        """Before others, because of what was said of it: as "told" or as "low"."""
        self.expires = math.inf
        self.pinned_until = -math.inf
        self.held_until = 0
        """It is worth more than others until so many blocks have been evicted."""
        self.tenant = ""
        self.session: str | None = None
        self.shared = False
        """Whether more than one conversation has had these blocks. Then others may come."""

    def inherit(self, whole: Self) -> None:
        super().inherit(whole)
        self.dead, self.expires, self.leaves = whole.dead, whole.expires, whole.leaves
        self.session, self.tenant, self.shared = whole.session, whole.tenant, whole.shared
        self.pinned_until, self.held_until = whole.pinned_until, whole.held_until
        if whole.keys:
            self.followers = {hash(whole.keys[0])}

    def leave_behind(self, rest: Self, session: str | None) -> None:
        """A request went on from the end of this one and not to `rest`, which was behind it: what it leaves behind is no
        use by others if it was the same conversation's, or just the partial block at its end."""
        if rest.session == session if session else len(rest.keys) == 1 and not rest.followers:
            self.followers.discard(hash(rest.keys[0]))


class Deadlines:
    """Segments by a time that they carry."""

    def __init__(self, segments: Mapping[int, ToldSegment], carried: Callable[[ToldSegment], float]) -> None:
        self._segments = segments
        self._carried = carried
        self._heap: list[tuple[float, int]] = []
        """Some have another time by now, or are gone."""

    def add(self, segment: ToldSegment) -> None:
        """It has a new time."""
        if self._carried(segment) < math.inf:
            heapq.heappush(self._heap, (self._carried(segment), segment.number))
        if len(self._heap) > 2 * len(self._segments) + 64:
            self._heap = [entry for entry in {*self._heap} if self._holds(*entry)]
            heapq.heapify(self._heap)

    def due(self, now: float) -> Iterator[ToldSegment]:
        """Take out those whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            time, number = heapq.heappop(self._heap)
            if self._holds(time, number):
                yield self._segments[number]

    def _holds(self, time: float, number: int) -> bool:
        return number in self._segments and self._carried(self._segments[number]) == time


class Conversations:
    """Which conversation has stored a block last, whether it is resident or not; for the `limit` blocks first seen last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last = Homes(limit + limit // 16, touch=False)
        """By the hash of a block: the hash of the conversation."""
        self._first: deque[array[int]] = deque()
        """The hashes of blocks, in the order in which they were first seen."""

    def note(self, run: Sequence[Key], conversation: str) -> int:
        """A conversation stores blocks. Returns how many of them, from the first on, end with one that another had last."""
        hashes: list[Key] = list(map(hash, run))
        ours = hash(conversation)
        known = self._last.present(hashes)
        theirs = len(known)
        for last, count in reversed(self._last.runs(known)):
            if last != ours:
                break
            theirs -= count
        self._remember(hashes, ours)
        return hashes.index(known[theirs - 1]) + 1 if theirs else 0

    def _remember(self, hashes: Sequence[Key], conversation: int) -> None:
        new = cast(list[int], distinct(self._last.absent(hashes)))  # two blocks may have one hash
        if new:
            self._first.append(array("q", new))
        self._last.put(hashes, conversation)
        surplus = len(self._last) - self._limit
        while surplus > 0:
            gone = self._first[0][:surplus]
            self._last.remove(gone)
            surplus -= len(gone)
            del self._first[0][: len(gone)]
            if not self._first[0]:
                self._first.popleft()
