"""Segments by class and age, so that the one of lowest index is found at once and growing old costs next to nothing."""

from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from typing import Self

import numpy as np

from kvloft.policies.chains import Segment
from kvloft.policies.hazard import BINS, EDGES, Hazards, Table
from kvloft.request import Key

_CHECKED_EVERY = [
    (bin, max(1, (end - start) // 4)) for bin, (start, end) in enumerate(zip((0, *EDGES), EDGES, strict=False))
]
"""Segments in a bin move on when the time is a multiple of this: late by a quarter of the bin at most."""


class AgedSegment(Segment):
    """A segment and what is known of its use. Times are numbers of requests."""

    __slots__ = (
        "bin",
        "branches",
        "branches_reused",
        "committed",
        "ends",
        "ghost",
        "kind",
        "last",
        "origin",
        "reads",
        "turn",
    )

    def __init__(self, number: int, keys: tuple[Key, ...], parent: Self | None) -> None:
        super().__init__(number, keys, parent)
        self.ghost = array("q")
        """Hashes of the evicted blocks that followed its resident ones."""
        self.kind = 0
        """Its class."""
        self.bin = 0
        """The bin of its age, as far as it has been noticed."""
        self.last = 0
        """When it was used last."""
        self.reads = 0
        self.turn = 0
        """How many tails of the same conversation lie before it."""
        self.ends = False
        """Whether a request ended at its end, or one block behind it."""
        self.branches = 0
        """Tails that were stored behind it, ..."""
        self.branches_reused = 0
        """... and how many of them were used again."""
        self.committed = False
        self.origin: tuple[AgedSegment, int, int, int] | None = None
        """Until it has taught: the ghost that came back as this segment, how many blocks, its class and bin at that time."""

    @property
    def size(self) -> int:
        """Its blocks, resident and evicted."""
        return len(self.keys) + len(self.ghost)

    def inherit(self, whole: Self) -> None:
        super().inherit(whole)
        self.kind, self.bin, self.last, self.reads = whole.kind, whole.bin, whole.last, whole.reads
        self.turn, self.committed, self.origin = whole.turn, whole.committed, whole.origin
        self.ends = whole.ends and whole.size <= 1


class Ages:
    """All segments, each in the queue of its age's bin, where those used first are first; and apart from that, by class and
    bin, the leaves among them, which end a resident chain.

    Args:
        segments: by number; to be kept up to date by whoever has them.
        hazards: is told of segments that become too old for a bin.
    """

    def __init__(self, segments: dict[int, AgedSegment], hazards: Hazards) -> None:
        self.clock = 0
        self._segments = segments
        self._hazards = hazards
        self._all: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(BINS)]
        self._leaves: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._filled = 0
        """Bit r: there may be leaves in the queue of rank r."""
        self.rank(hazards.index)

    def bin(self, segment: AgedSegment) -> int:
        """The bin of a segment's age now."""
        return bisect_right(EDGES, self.clock - segment.last)

    def put(self, segment: AgedSegment) -> None:
        """Let a segment take its place."""
        self._all[segment.bin][segment.number] = None
        if segment.keys and not segment.live:
            self.put_leaf(segment)

    def put_leaf(self, segment: AgedSegment, oldest: bool = False) -> None:
        """A segment ends a resident chain now; it is the youngest or the oldest of its class and bin."""
        place = segment.kind * BINS + segment.bin
        leaves = self._leaves[place]
        leaves[segment.number] = None
        if oldest:
            leaves.move_to_end(segment.number, last=False)
        self._filled |= 1 << self._rank[place]

    def take(self, segment: AgedSegment) -> None:
        """Take a segment out; then its class and bin may be changed."""
        self._all[segment.bin].pop(segment.number, None)
        self.take_leaf(segment)

    def take_leaf(self, segment: AgedSegment) -> None:
        """A segment ends no resident chain now."""
        self._leaves[segment.kind * BINS + segment.bin].pop(segment.number, None)

    def lowest(self) -> AgedSegment | None:
        """The leaf of the lowest index, the oldest of them; None if there is no leaf."""
        while self._filled:
            leaves = self._leaves.get(self._at_rank[(self._filled & -self._filled).bit_length() - 1])
            if leaves:
                return self._segments[next(iter(leaves))]
            self._filled &= self._filled - 1
        return None

    def rank(self, index: Table) -> None:
        """Order classes and bins by a new index."""
        order = np.argsort(index, axis=None, kind="stable")
        ranks = np.empty(order.size, np.intp)
        ranks[order] = np.arange(order.size)
        self._rank: list[int] = ranks.tolist()
        self._at_rank: list[int] = order.tolist()
        self._filled = 0
        for place, leaves in self._leaves.items():
            if leaves:
                self._filled |= 1 << self._rank[place]

    def tick(self) -> None:
        """One request more. Segments move on to the bins of their ages; a segment passes through each bin once."""
        self.clock += 1
        clock = self.clock
        for bin, every in _CHECKED_EVERY:
            if clock % every == 0 and self._all[bin]:
                self._pass_on(bin)

    def _pass_on(self, bin: int) -> None:
        queue, segments = self._all[bin], self._segments
        youngest = self.clock - EDGES[bin]
        moved: list[int] = []
        survived: dict[int, list[int]] = {}
        for number in queue:
            segment = segments[number]
            if segment.last > youngest:
                break
            moved.append(number)
            kind = segment.kind
            leaf = self._leaves[kind * BINS + bin].pop(number, self) is None
            segment.bin = bin + 1
            if leaf and not segment.live:
                self.put_leaf(segment)
            if kind in survived:
                survived[kind].append(segment.size)
            else:
                survived[kind] = [segment.size]
        if moved:
            for number in moved:
                del queue[number]
            self._all[bin + 1].update(dict.fromkeys(moved))
            for kind, blocks in survived.items():
                self._hazards.survive(kind, bin, len(blocks), sum(blocks))
