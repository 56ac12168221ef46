"""The parts of HDI: what is learned of ages, what LRU would have had."""

import numpy as np

from kvloft.policies.hazard import BINS, Hazards
from kvloft.policies.shadow import ShadowLRU


def test_hazards_before_anything_is_seen_are_lru() -> None:
    index = Hazards(3).index
    assert (index[0] == index[1]).all()
    assert (np.diff(index, axis=1)[:, 1:] < 0).all(), "the older, the lower; ages 0 and 1 are alike"


def test_hazards_tell_classes_apart() -> None:
    hazards = Hazards(3)
    counts = np.zeros((3, 3, BINS), np.int64)
    reused, survived, segments = counts
    survived[0, :12] = survived[1, :20] = 1600
    reused[0, 12] = 1600
    segments[:] = (reused + survived) / 4
    hazards.observe(counts.tobytes())
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
