"""Segments by class and age, so that the one of lowest index is found at once and growing old costs next to nothing."""

from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from heapq import heappop, heappush
from typing import Self

import numpy as np

from kvloft.policies.chains import Segment
from kvloft.policies.hazard import BINS, EDGES, Hazards, Table
from kvloft.request import Key

_NUMBER = 40
"""Bits of a segment's number."""
_NUMBERS = (1 << _NUMBER) - 1
_ENDS = (*EDGES, 1 << 62)
"""Ages at which bins end."""


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
        "use",
    )

    def __init__(self, number: int, keys: tuple[Key, ...], parent: Self | None) -> None:
        super().__init__(number, keys, parent)
        self.ghost = array("q")
        """Hashes of the evicted blocks that followed its resident ones."""
        self.kind = 0
        """Its class."""
        self.bin = 0
        """The bin of its age when it was put among the leaves."""
        self.last = 0
        """When it was used last."""
        self.use = -1
        """That use's number, see `Watch`."""
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


class Watch:
    """Sees which segments become too old for a bin without being used, resident or not. O(1) a use; the rest is arrays."""

    PERIOD = 128
    """Requests between looks."""

    def __init__(self, hazards: Hazards) -> None:
        self._hazards = hazards
        self._base = 0
        """Uses before the first in the arrays; all are older than any bin."""
        self._times = array("q")
        self._kinds = array("b")
        self._blocks = array("q")
        """By use, in their order: when it was, and of what; no blocks if the segment was used again since, or is gone."""
        self._seen = [0] * (BINS - 1)
        """By bin: the uses that have left it."""

    def begin(self, segment: AgedSegment) -> None:
        """A segment was used now."""
        segment.use = self._base + len(self._times)
        self._times.append(segment.last)
        self._kinds.append(segment.kind)
        self._blocks.append(segment.size)

    def change(self, segment: AgedSegment) -> None:
        """Its class or size are others now."""
        at = segment.use - self._base
        if at >= 0:
            self._kinds[at] = segment.kind
            self._blocks[at] = segment.size

    def end(self, segment: AgedSegment, bin: int) -> None:
        """It is used again at an age in this bin, or gone. Bins that it left since the last look are made up for."""
        at = segment.use - self._base
        segment.use = -1
        if at < 0:
            return
        while bin and self._seen[bin - 1] <= at:
            bin -= 1
            self._hazards.survive(self._kinds[at], bin, 1, self._blocks[at])
        self._blocks[at] = 0

    def look(self, clock: int) -> None:
        """Tell the hazards who has left which bin since the last look."""
        for bin, edge in enumerate(EDGES):
            first = self._seen[bin]
            end = bisect_right(self._times, clock - edge, first)
            if end > first:
                self._seen[bin] = end
                blocks = np.frombuffer(self._blocks, np.int64)[first:end].copy()
                kinds = np.frombuffer(self._kinds, np.int8)[first:end][blocks > 0]
                totals = np.bincount(kinds, blocks[blocks > 0]).tolist()
                for kind, count in enumerate(np.bincount(kinds).tolist()):
                    if count:
                        self._hazards.survive(kind, bin, count, int(totals[kind]))
        old = self._seen[-1]
        if old > 4096 and 2 * old > len(self._times):
            del self._times[:old], self._kinds[:old], self._blocks[:old]
            self._base += old
            self._seen = [seen - old for seen in self._seen]


class Ages:
    """The leaves, which end a resident chain, by class and bin of their age; in each those that came first are first.

    Args:
        segments: by number; to be kept up to date by whoever has them.
        hazards: is told of segments that become too old for a bin.
    """

    def __init__(self, segments: dict[int, AgedSegment], hazards: Hazards) -> None:
        self.clock = 0
        self.watch = Watch(hazards)
        self._segments = segments
        self._leaves: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._due: list[int] = []
        """A heap: when a leaf leaves its bin, and its number, in one. Some have been used since, or are gone."""
        self._filled = 0
        """Bit r: there may be leaves in the queue of rank r."""
        self.rank(hazards.index)

    def bin(self, segment: AgedSegment) -> int:
        """The bin of a segment's age now."""
        return bisect_right(EDGES, self.clock - segment.last)

    def put(self, segment: AgedSegment, first: bool = False) -> None:
        """If a segment ends a resident chain, it is a leaf: the first to leave of its class and bin, if that is wanted or it
        is the oldest there; or else the last."""
        if segment.live or not segment.keys:
            return
        self.take(segment)
        bin = segment.bin = self.bin(segment)
        place = segment.kind * BINS + bin
        leaves = self._leaves[place]
        oldest = next(iter(leaves), None)
        leaves[segment.number] = None
        if oldest is not None and (first or segment.last < self._segments[oldest].last):
            leaves.move_to_end(segment.number, last=False)
        self._filled |= 1 << self._rank[place]
        if bin < len(EDGES):
            heappush(self._due, (segment.last + EDGES[bin]) << _NUMBER | segment.number)

    def take(self, segment: AgedSegment) -> None:
        """A segment, if it was one, ends no resident chain now; or its class is about to change."""
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
        """One request more. Leaves move on to the bins of their ages; each passes through a bin once."""
        self.clock += 1
        if self.clock % self.watch.PERIOD == 0:
            self.watch.look(self.clock)
        due, now = self._due, (self.clock + 1) << _NUMBER
        while due and due[0] < now:
            entry = heappop(due)
            segment = self._segments.get(entry & _NUMBERS)
            if segment is None or segment.last + _ENDS[segment.bin] != entry >> _NUMBER:
                continue
            place = segment.kind * BINS + segment.bin
            if self._leaves[place].pop(segment.number, self) is None and not segment.live:
                segment.bin += 1
                self._leaves[place + 1][segment.number] = None
                self._filled |= 1 << self._rank[place + 1]
                if segment.bin < len(EDGES):
                    heappush(due, (segment.last + EDGES[segment.bin]) << _NUMBER | segment.number)
