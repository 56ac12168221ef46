"""What `kvloft._table.Ages`, `Uses` and `Ghosts` do, done naively: by looking at everything each time."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from kvloft.policies.ages import AgedSegment
from kvloft.request import Key

Counts = np.ndarray[Any, np.dtype[np.int64]]


class NaiveAges:
    """Leaves in a dictionary."""

    def __init__(self, classes: int, edges: Sequence[int], stages: Sequence[int]) -> None:
        self.edges, self.stages = edges, stages
        self.clock = 0
        self.placed: dict[int, tuple[AgedSegment, int, int]] = {}
        """Segments that were put, with their class and last use at that time."""
        self.raw = self.index = np.zeros((classes, len(edges) + 1))

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
        self.raw = index
        parts = np.split(index, self.stages, axis=1)
        self.index = np.hstack([np.minimum.accumulate(part, axis=1) for part in parts])

    def take(self) -> AgedSegment | None:
        return self.take_before(self.clock + 1)

    def take_before(self, time: int) -> AgedSegment | None:
        def order(segment: AgedSegment) -> tuple[float, int, int, int, int]:
            bin = self.bin(segment)
            stage = bisect_right(self.stages, bin)
            return (self.index[segment.kind, bin], segment.kind, stage, segment.last, segment.number)

        early = [segment for segment in self.leaves() if segment.last < time]
        return self._take(min(early, key=order, default=None))

    def take_oldest(self) -> AgedSegment | None:
        return self._take(min(self.leaves(), key=lambda segment: (segment.last, segment.number), default=None))

    def _take(self, segment: AgedSegment | None) -> AgedSegment | None:
        if segment:
            del self.placed[segment.number]
        return segment


class NaiveUses:
    """Each use of each segment, and all bins that it has left before it was used again."""

    def __init__(self, ages: NaiveAges) -> None:
        self.ages = ages
        self.open: dict[int, tuple[int, int, int, int]] = {}
        """By segment: time, class, blocks, and how many bins it was seen to leave."""
        self.counts: Counts = np.zeros((3, *ages.index.shape), np.int64)

    def begin(self, segment: AgedSegment) -> None:
        assert segment.last == self.ages.clock
        self.open[segment.number] = (segment.last, segment.kind, segment.size, 0)
        self.ages.put(segment)

    def change(self, segment: AgedSegment) -> None:
        if segment.number in self.open:
            time, _, _, left = self.open[segment.number]
            self.open[segment.number] = (time, segment.kind, segment.size, left)

    def end(self, segment: AgedSegment, reused: bool) -> None:
        bin = self.ages.bin(segment)
        if reused:
            self.reuse(segment.kind, bin, segment.size)
        if segment.number in self.open:
            self._leave(segment.number, bin)
            del self.open[segment.number]

    def reuse(self, kind: int, bin: int, blocks: int) -> None:
        self.counts[0, kind, bin] += blocks
        self.counts[2, kind, bin] += 1

    def look(self) -> None:
        for number, (time, _, _, _) in self.open.items():
            self._leave(number, bisect_right(self.ages.edges, self.ages.clock - time), looked=True)

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


class NaiveGhosts:
    """Lists of hashes by segment, and who begins with which."""

    def __init__(self) -> None:
        self.hashes: dict[int, list[int]] = {}
        """By segment, the oldest ghost first."""
        self.at: dict[int, int] = {}

    def find(self, keys: Sequence[Key]) -> tuple[int, int] | None:
        number = self.at.get(hash(keys[0]))
        if number is None:
            return None
        same = takewhile(lambda pair: hash(pair[0]) == pair[1], zip(keys, self.hashes[number], strict=False))
        return number, len(list(same))

    def evict(self, number: int, keys: Sequence[Key]) -> None:
        if keys:
            self._set(number, [*map(hash, keys), *self.hashes.get(number, ())])
            self.hashes[number] = self.hashes.pop(number)

    def extend(self, number: int, keys: Sequence[Key]) -> None:
        if keys:
            self._set(number, [*self.hashes.get(number, ()), *map(hash, keys)])

    def drop(self, number: int, n: int) -> None:
        if n:
            self._set(number, self.hashes.get(number, [])[n:])

    def part(self, number: int, n: int, head: int) -> None:
        hashes = self.hashes[number]
        self.drop(number, n)
        self._set(head, hashes[:n])

    def _set(self, number: int, hashes: list[int]) -> None:
        before = self.hashes.get(number, ())
        if before and self.at.get(before[0]) == number:
            del self.at[before[0]]
        self.hashes[number] = hashes
        if hashes:
            self.at[hashes[0]] = number
        else:
            del self.hashes[number]


class NaiveShadow:
    """What LRU has of each use, by use; what we have of it the segments know themselves."""

    def __init__(self, capacity: int, segments: Sequence[AgedSegment]) -> None:
        self.capacity, self.segments = capacity, segments
        self.has: dict[int, int] = {}
        """By use, the oldest first; those that LRU has lost all of are left out."""
        self.latest = 0
        self.lost: Counter[int] = Counter()
        """What we have lost of each use since the latest."""
        self.missed = self.spared = 0

    def apart_of(self, use: int) -> int:
        ours = sum(len(segment.keys) for segment in self.segments if segment.stamp == use)
        return max(0, self.has.get(use, 0) - ours)

    @property
    def apart(self) -> int:
        return sum(map(self.apart_of, self.has))

    def use(self, path: Sequence[AgedSegment]) -> int:
        had = 0
        for segment in path:
            found = min(segment.size, self.has.get(segment.stamp, 0))
            had += found
            if found:
                self.has[segment.stamp] -= found
        self.latest += 1
        self.has[self.latest] = sum(segment.size for segment in path)
        for segment in path:
            segment.stamp = self.latest
        over = sum(self.has.values()) - self.capacity
        for use in list(self.has):
            apart, gone = self.apart_of(use), max(0, min(over, self.has[use]))
            self.has[use] -= gone
            over -= gone
            self.spared += max(0, apart - self.apart_of(use) - self.lost[use])
            if over > 0:
                del self.has[use]
        self.lost.clear()
        return had

    def lose(self, segment: AgedSegment, blocks: int) -> None:
        self.lost[segment.stamp] += blocks

    def lacking(self, segment: AgedSegment, more: int) -> int:
        ours = sum(len(one.keys) for one in self.segments if one.stamp == segment.stamp)
        return max(0, self.has[segment.stamp] - ours + more) if segment.stamp in self.has else 0

    def forget(self, segment: AgedSegment, blocks: int) -> None:
        if segment.stamp in self.has:
            self.has[segment.stamp] -= min(blocks, self.has[segment.stamp])
