"""Segments by class and age, so that the one of lowest index is found at once and growing old costs next to nothing."""

import math
from array import array
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Self

import numpy as np

from kvloft.policies.chains import Segment
from kvloft.policies.hazard import BINS, EDGES, Hazards, Table
from kvloft.request import Key

_NUMBER = 40
"""Bits of a segment's number."""
_NUMBERS = (1 << _NUMBER) - 1
_NEVER = 1 << 62
_BIN_ENDS = (*EDGES, _NEVER)
"""Ages at which bins end."""
_STAGE_BINS = (8, 16)
"""Bins that begin a stage, but for the first."""
_STAGES = len(_STAGE_BINS) + 1
_STAGE_OF = [bisect_right(_STAGE_BINS, bin) for bin in range(BINS)]
_FEW = 64


NO_GHOST = array("q")


class AgedSegment(Segment):
    """A segment and what is known of its use. Times are numbers of requests."""

    __slots__ = (
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
        self.ghost = NO_GHOST
        """Hashes of the evicted blocks that followed its resident ones."""
        self.kind = 0
        """Its class."""
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
        self.kind, self.last, self.reads = whole.kind, whole.last, whole.reads
        self.turn, self.committed, self.origin = whole.turn, whole.committed, whole.origin
        self.ends = whole.ends and whole.size <= 1


class Watch:
    """Sees which segments become too old for a bin without being used, resident or not. O(1) a use; the rest is arrays."""

    PERIOD = 256
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
            self._hazards.survive(self._kinds[at], bin, self._blocks[at])
        self._blocks[at] = 0

    def look(self, clock: int) -> None:
        """Tell the hazards who has left which bin since the last look."""
        for bin, edge in enumerate(EDGES):
            first = self._seen[bin]
            end = bisect_right(self._times, clock - edge, first)
            if end > first:
                self._seen[bin] = end
                self._leave(bin, slice(first, end))
        old = self._seen[-1]
        if old > 4096 and 2 * old > len(self._times):
            del self._times[:old], self._kinds[:old], self._blocks[:old]
            self._base += old
            self._seen = [seen - old for seen in self._seen]

    def _leave(self, bin: int, uses: slice) -> None:
        blocks = np.frombuffer(self._blocks, np.int64)[uses]
        kinds = np.frombuffer(self._kinds, np.int8)[uses]
        self._hazards.survive_all(bin, kinds[blocks > 0], blocks[blocks > 0])


class Ages:
    """The leaves, which end a resident chain, by class, stage of age and last use.

    Within a stage an index never rises with age, so of each class and stage only the oldest leaf can be the next to leave.

    Args:
        segments: by number; to be kept up to date by whoever has them.
        hazards: is told of segments that become too old for a bin.
    """

    def __init__(self, segments: dict[int, AgedSegment], hazards: Hazards) -> None:
        self.clock = 0
        self.watch = Watch(hazards)
        self._segments = segments
        queues = len(hazards.index) * _STAGES
        self._leaves: list[list[int]] = [[] for _ in range(queues)]
        """By class and stage, a heap: when a leaf was used last, and its number, in one. Some have been used since, have
        others behind them, or are gone."""
        self._crowded = [_FEW] * queues
        """Lengths at which those are taken out."""
        self._lowest = [math.inf] * queues
        """The index of the first in each heap, ..."""
        self._until = [_NEVER] * queues
        """... and the time at which it becomes too old for that."""
        self._looked = 0
        """When the first of all heaps were of their ages."""
        self.rank(hazards.index)

    def bin(self, segment: AgedSegment) -> int:
        """The bin of a segment's age now."""
        return bisect_right(EDGES, self.clock - segment.last)

    def put(self, segment: AgedSegment) -> None:
        """A segment may end a resident chain now, or is of another class or age. If it ends one, it is a leaf."""
        if not segment.live and segment.keys:
            self._put(segment.kind, segment.last, segment.last << _NUMBER | segment.number)

    def take(self) -> AgedSegment | None:
        """Take out the leaf of the lowest index, the oldest of them; None if there is no leaf."""
        if self._looked < self.clock:
            while min(self._until) <= self.clock:
                for queue, until in enumerate(self._until):
                    if until <= self.clock:
                        self._look(queue)
            self._looked = self.clock
        while (lowest := min(self._lowest)) < math.inf:
            queue = self._lowest.index(lowest)
            entry = heappop(self._leaves[queue])
            self._look(queue)
            if segment := self._leaf(entry, queue):
                return segment
        return None

    def rank(self, index: Table) -> None:
        """Order classes and bins by a new index."""
        stages = np.split(index, _STAGE_BINS, axis=1)
        self._index: list[list[float]] = np.hstack([np.minimum.accumulate(stage, axis=1) for stage in stages]).tolist()
        for queue in range(len(self._leaves)):
            self._look(queue)

    def tick(self) -> None:
        """One request more."""
        self.clock += 1
        if self.clock % self.watch.PERIOD == 0:
            self.watch.look(self.clock)

    def _put(self, kind: int, last: int, entry: int) -> None:
        bin = bisect_right(EDGES, self.clock - last)
        queue = kind * _STAGES + _STAGE_OF[bin]
        leaves = self._leaves[queue]
        if not leaves or entry < leaves[0]:
            self._lowest[queue] = self._index[kind][bin]
            self._until[queue] = last + _BIN_ENDS[bin]
        heappush(leaves, entry)
        if len(leaves) > self._crowded[queue]:
            leaves[:] = {entry for entry in leaves if self._leaf(entry, queue)}
            heapify(leaves)
            self._crowded[queue] = 2 * len(leaves) + _FEW
            self._look(queue)

    def _leaf(self, entry: int, queue: int) -> AgedSegment | None:
        """The leaf that an entry stands for, None if it stands for none any more."""
        segment = self._segments.get(entry & _NUMBERS)
        if segment is None or segment.live or segment.last != entry >> _NUMBER or not segment.keys:
            return None
        return segment if segment.kind == queue // _STAGES else None

    def _look(self, queue: int) -> None:
        """What is first now; it may be no leaf any more, then no leaf behind it has a lower index. What is too old for the
        stage moves on to the next."""
        leaves = self._leaves[queue]
        while leaves:
            last = leaves[0] >> _NUMBER
            bin = bisect_right(EDGES, self.clock - last)
            if _STAGE_OF[bin] == queue % _STAGES:
                self._lowest[queue] = self._index[queue // _STAGES][bin]
                self._until[queue] = last + _BIN_ENDS[bin]
                return
            entry = heappop(leaves)
            if self._leaf(entry, queue):
                self._put(queue // _STAGES, last, entry)
        self._lowest[queue], self._until[queue] = math.inf, _NEVER
