"""What `kvloft._table.Ages` and `Uses` do, done naively: by looking at everything each time."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvloft.policies.ages import AgedSegment

Counts = np.ndarray[Any, np.dtype[np.int64]]


class NaiveAges:
    """Leaves in a dictionary."""

    def __init__(self, classes: int, edges: Sequence[int], stages: Sequence[int]) -> None:
        self.edges, self.stages = edges, stages
        self.clock = 0
        self.placed: dict[int, tuple[AgedSegment, int, int]] = {}
        """Segments that were put, with their class and last use at that time."""
        self.index = np.zeros((classes, len(edges) + 1))

    def bin(self, segment: AgedSegment) -> int:
        return bisect_right(self.edges, self.clock - segment.last)

    def put(self, segment: AgedSegment) -> None:
        self.placed.pop(segment.number, None)
        if segment.keys and not segment.live:
            self.placed[segment.number] = (segment, segment.kind, segment.last)

    def leaves(self) -> list[AgedSegment]:
        return [
            segment
            for segment, kind, last in self.placed.values()
            if segment.keys and not segment.live and (segment.kind, segment.last) == (kind, last)
        ]

    def rank(self, index: "np.ndarray[Any, np.dtype[np.float64]]") -> None:
        parts = np.split(index, self.stages, axis=1)
        self.index = np.hstack([np.minimum.accumulate(part, axis=1) for part in parts])

    def take(self) -> AgedSegment | None:
        def order(segment: AgedSegment) -> tuple[float, int, int, int, int]:
            bin = self.bin(segment)
            stage = bisect_right(self.stages, bin)
            return (self.index[segment.kind, bin], segment.kind, stage, segment.last, segment.number)

        return self._take(min(self.leaves(), key=order, default=None))

    def take_oldest(self) -> AgedSegment | None:
        return self._take(min(self.leaves(), key=lambda segment: (segment.last, segment.number), default=None))

    def _take(self, segment: AgedSegment | None) -> AgedSegment | None:
        if segment:
            del self.placed[segment.number]
        return segment


class NaiveUses:
    """Each use of each segment, and all bins that it has left before it was used again."""

    def __init__(self, classes: int, edges: Sequence[int]) -> None:
        self.edges = edges
        self.open: dict[int, tuple[int, int, int, int]] = {}
        """By segment: time, class, blocks, and how many bins it was seen to leave."""
        self.counts: Counts = np.zeros((3, classes, len(edges) + 1), np.int64)

    def begin(self, segment: AgedSegment) -> None:
        self.open[segment.number] = (segment.last, segment.kind, segment.size, 0)

    def change(self, segment: AgedSegment) -> None:
        if segment.number in self.open:
            time, _, _, left = self.open[segment.number]
            self.open[segment.number] = (time, segment.kind, segment.size, left)

    def end(self, segment: AgedSegment, bin: int) -> None:
        if segment.number in self.open:
            self._leave(segment.number, bin)
            del self.open[segment.number]

    def reuse(self, kind: int, bin: int, blocks: int) -> None:
        self.counts[0, kind, bin] += blocks
        self.counts[2, kind, bin] += 1

    def look(self, clock: int) -> None:
        for number, (time, _, _, _) in self.open.items():
            self._leave(number, bisect_right(self.edges, clock - time), looked=True)

    def take(self) -> Counts:
        counts, self.counts = self.counts, np.zeros_like(self.counts)
        return counts

    def _leave(self, number: int, bins: int, looked: bool = False) -> None:
        """Who has no blocks is overlooked."""
        time, kind, blocks, left = self.open[number]
        for bin in range(left, 0 if looked and not blocks else bins):
            self.counts[1, kind, bin] += blocks
            self.counts[2, kind, bin] += 1
        self.open[number] = (time, kind, blocks, max(left, bins))
