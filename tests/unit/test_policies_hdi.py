"""The parts of HDI: what is learned of ages, what LRU would have had."""

import numpy as np

from kvloft._table import ShadowLRU
from kvloft.policies import make_policy
from kvloft.policies.ages import AgedSegment
from kvloft.policies.hazard import BINS, Hazards
from kvloft.policies.shadow import Rival
from kvloft.pool import BlockPool
from kvloft.request import Request


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


def segment(blocks: int) -> AgedSegment:
    return AgedSegment(0, tuple(range(blocks)), None)


def test_the_shadow_is_lru() -> None:
    shadow = ShadowLRU(10)
    first, second, third = (segment(4) for _ in range(3))
    assert shadow.use([first]) == shadow.use([second]) == 0
    assert shadow.use([first]) == 4
    shadow.lose(second, 1)
    second.keys = second.keys[:3]
    assert (shadow.apart, shadow.lacking(second, 2)) == (1, 3)
    shadow.use([third])
    assert shadow.apart == 0, "two blocks of the second left, from its tail, and of these we have both"
    assert shadow.spared == 0, "it lost the one just after we did"
    assert shadow.use([second]) == 2
    shadow.lose(third, 3)
    shadow.use([second])
    shadow.regain(third, 1)
    assert (shadow.apart, shadow.missed) == (2, 1)
    shadow.forget(third, 2, 0)
    assert shadow.apart == 0
    assert shadow.use([third]) == 2


def test_what_may_be_lost_is_paid_for() -> None:
    rival = Rival(1000)
    used = segment(100)
    rival.shadow.use([used])
    assert not rival.lets(used, 100), "nobody knows yet how much of it will be missed"
    rival.count(500, 0, 100)
    assert rival.lets(used, 100)
    rival.count(0, 500, 100)
    assert not rival.lets(used, 100)
    for _ in range(20):
        rival.count(1000, 0, 100)
    rival.count(0, 1000, 100)
    assert not rival.lets(used, 100), "what was gained long ago counts only so much"
    assert rival.lets(segment(100), 100), "what LRU does not have may always go"


def test_nothing_is_kept_of_requests_whose_blocks_are_forgotten() -> None:
    policy = make_policy("hdi", 16)
    pool = BlockPool(16, policy)
    for number in range(1000):
        request = Request(number)
        plan = pool.prepare_store([(number, at) for at in range(4)], request)
        if plan is not None:
            pool.complete_store(plan.keys, request)
        pool.finish(request)
    assert pool.counters.stored > 1000
    assert set(policy._tips) <= set(policy._tree.segments)  # type: ignore[attr-defined]
    assert len(policy._tree.segments) < 100  # type: ignore[attr-defined]
