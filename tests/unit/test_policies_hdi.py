"""The parts of HDI: what is learned of ages, what LRU would have had."""

import numpy as np

from kvloft.policies.ages import AgedSegment, Ages, Watch
from kvloft.policies.hazard import BINS, EDGES, Hazards
from kvloft.policies.shadow import ShadowLRU


class Tally(Hazards):
    """Remembers what it was told."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.survived = np.zeros((classes, BINS), int)

    def survive(self, kind: int, bin: int, blocks: int) -> None:
        super().survive(kind, bin, blocks)
        self.survived[kind, bin] += blocks

    def survive_all(self, bin: int, kinds: np.ndarray, blocks: np.ndarray) -> None:
        super().survive_all(bin, kinds, blocks)
        np.add.at(self.survived[:, bin], kinds, blocks)


def test_whoever_leaves_a_bin_is_counted_once() -> None:
    """However seldom one looks: by looking, by a new use, or by a mixture of both."""
    for pace in (1, 7, 1000):
        tally = Tally(2)
        watch = Watch(tally)
        segments = [AgedSegment(n, (("block", n),), None) for n in range(60)]
        expected = np.zeros((2, BINS), int)
        used: dict[int, int] = {}
        for clock in range(1, 3000):
            segment = segments[(clock * clock) % 60]
            if segment.number in used:
                age = clock - used[segment.number]
                bin = int(np.searchsorted(EDGES, age, "right"))
                expected[segment.kind, :bin] += 1
                watch.end(segment, bin)
            segment.kind, segment.last = segment.number % 2, clock
            watch.begin(segment)
            used[segment.number] = clock
            if clock % pace == 0:
                watch.look(clock)
        watch.look(clock)
        for number, last in used.items():
            expected[number % 2, : int(np.searchsorted(EDGES, clock - last, "right"))] += 1
        assert (tally.survived == expected).all()


def test_uses_older_than_any_bin_are_forgotten() -> None:
    watch = Watch(Hazards(1))
    for clock in range(0, 4 * EDGES[-1], 8):
        segment = AgedSegment(clock, (clock,), None)
        segment.last = clock
        watch.begin(segment)
        if clock % 1024 == 0:
            watch.look(clock)
    assert len(watch._times) < 3 * EDGES[-1] / 8
    assert segment.use == clock // 8
    watch.end(segment, 0)


def test_hazards_before_anything_is_seen_are_lru() -> None:
    index = Hazards(3).index
    assert (index[0] == index[1]).all()
    assert (np.diff(index, axis=1)[:, 1:] < 0).all(), "the older, the lower; ages 0 and 1 are alike"


def test_hazards_tell_classes_apart() -> None:
    hazards = Hazards(3)
    for _ in range(400):
        for bin in range(12):
            hazards.survive(0, bin, 4)
        hazards.reuse(0, 12, 4)
        for bin in range(20):
            hazards.survive(1, bin, 4)
    hazards.refresh()
    assert hazards.ever[0] > 0.8 > 0.4 > hazards.ever[1]
    assert hazards.index[0, 11] > hazards.index[0, 0] > hazards.index[1, 0], "it is worth waiting for"
    assert hazards.ever[1] < hazards.ever[2] < hazards.ever[0], "of a class that nobody saw the average is taken"


def test_the_shadow_is_lru() -> None:
    shadow = ShadowLRU(10)
    assert shadow.use([(1, 4)]) == 0
    assert shadow.use([(2, 4)]) == 0
    assert shadow.use([(1, 4)]) == 4
    assert shadow.use([(3, 4)]) == 0, "two blocks of 2 leave, from its tail"
    assert shadow.use([(2, 4)]) == 2
    shadow.split(2, 1, head=7)
    assert shadow.use([(2, 3), (7, 1)]) == 4
    shadow.forget(2)
    assert shadow.use([(2, 3)]) == 0


def test_of_a_class_and_stage_the_oldest_leaf_of_the_lowest_index_leaves() -> None:
    """Held against looking at all leaves, while they are used again, get others behind them, and change their classes."""
    rng = np.random.default_rng(1)
    hazards = Hazards(3)
    segments = {n: AgedSegment(n, (n,), None) for n in range(40)}
    ages = Ages(segments, hazards)
    for segment in segments.values():
        ages.put(segment)
    for clock in range(4000):
        ages.tick()
        if clock % 500 == 0:
            index = rng.random((3, BINS))
            ages.rank(index)
            lowest = np.hstack(
                [np.minimum.accumulate(part, axis=1) for part in (index[:, :8], index[:, 8:16], index[:, 16:])]
            )
        segment = segments[int(rng.integers(40))]
        segment.last, segment.kind, segment.live = ages.clock, int(rng.integers(3)), int(rng.integers(2))
        ages.put(segment)
        taken = ages.take()
        worth = {n: lowest[one.kind, ages.bin(one)] for n, one in segments.items() if not one.live}
        assert (taken is None) == (not worth)
        if taken:
            assert worth[taken.number] == min(worth.values())
            ages.put(taken)
        if clock % 7 == 0:
            segment.live = 0
            ages.put(segment)


def test_heaps_of_leaves_stay_in_proportion() -> None:
    ages = Ages(segments := {n: AgedSegment(n, (n,), None) for n in range(10)}, Hazards(2))
    for clock in range(20_000):
        ages.tick()
        segment = segments[clock % 10]
        segment.last = ages.clock
        ages.put(segment)
    assert sum(map(len, ages._leaves)) < 1000
