"""The compiled leaves and uses: what is out of range is refused, what is many stays small, and nothing leaks."""

import gc
import sys
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from aged_models import NaiveUses
from kvloft._table import Ages, Run, Uses
from kvloft.policies.ages import STAGES, AgedSegment
from kvloft.policies.chains import Segment
from kvloft.policies.hazard import BINS, EDGES

testcapi = pytest.importorskip("_testcapi", reason="this Python cannot be made to run out of memory")


def segment(number: int = 0, *, last: int = 0, kind: int = 0, blocks: int = 1) -> AgedSegment:
    made = AgedSegment(number, tuple(range(blocks)), None)
    made.last, made.kind = last, kind
    return made


def ages(classes: int = 2) -> Ages:
    return Ages(classes, EDGES, STAGES)


def test_whoever_leaves_a_bin_is_counted_once() -> None:
    """However seldom one looks: by looking, by a new use, or by a mixture of both."""
    for pace in (1, 7, 1000):
        uses, naive = Uses(2, EDGES), NaiveUses(2, EDGES)
        segments = [segment(number, kind=number % 2) for number in range(60)]
        for clock in range(1, 3000):
            used = segments[(clock * clock) % 60]
            bin = int(np.searchsorted(EDGES, clock - used.last, "right"))
            for one in (uses, naive):
                one.end(used, bin)
            used.last = clock
            naive.begin(used)
            uses.begin(used)
            if clock % pace == 0:
                uses.look(clock)
        uses.look(clock)
        naive.look(clock)
        assert (np.frombuffer(uses.take(), np.int64).reshape(3, 2, BINS) == naive.take()).all()


def test_uses_older_than_any_bin_are_forgotten() -> None:
    uses = Uses(1, EDGES)
    for clock in range(0, 4 * EDGES[-1], 8):
        uses.begin(used := segment(clock, last=clock))
        if clock % 1024 == 0:
            uses.look(clock)
    assert len(uses) < 3 * EDGES[-1] / 8
    assert used.use == clock // 8
    uses.end(used, 0)
    uses.end(segment(), BINS)
    assert used.use == -1


def test_leaves_are_as_many_as_segments_and_none_is_kept_that_is_empty() -> None:
    leaves = ages()
    segments = [segment(number) for number in range(10)]
    counts = [sys.getrefcount(segments[0])]
    for clock in range(20_000):
        leaves.tick()
        used = segments[clock % 10]
        used.last = leaves.clock
        leaves.put(used)
    counts.append(sys.getrefcount(segments[0]))
    assert {one.number for one in leaves.leaves()} == {*range(10)}
    for one in segments:
        one.keys = ()
        leaves.put(one)
    assert leaves.take() is None
    counts.append(sys.getrefcount(segments[0]))
    assert counts == [counts[0], counts[0] + 1, counts[0]]


def test_nothing_leaks() -> None:
    gc.collect()
    key = object()
    before = sys.getrefcount(key), sys.getrefcount(AgedSegment)
    leaves = ages()
    for number in range(1000):
        one = AgedSegment(number, (key,), AgedSegment(-number, (key,), None))
        one.owner, one.origin, one.kind = (key,), (one.parent, 1, 2, 3), number % 2
        leaves.put(one)
        if number % 3 == 0:
            leaves.take()
        if number % 5 == 0:
            one.live = 1
    leaves.take_oldest()
    del leaves, one
    gc.collect()
    assert (sys.getrefcount(key), sys.getrefcount(AgedSegment)) == before


def test_a_chain_of_many_segments_is_dropped_without_going_deep() -> None:
    end = None
    for number in range(300_000):
        end = AgedSegment(number, (), end)
    assert end and not gc.is_tracked(end)
    del end


def test_copies_have_segments_of_their_own() -> None:
    leaves = ages()
    above = segment(1)
    above.live = 1
    one = AgedSegment(2, ("a",), above)
    one.kind, one.ghost[:], one.owner = 1, one.ghost, ("request",)
    one.origin = (above, 1, 0, 3)
    leaves.put(one)
    copied, twin = deepcopy((leaves, one))
    assert copied.leaves() == [twin] and twin is not one and twin.parent is not above
    assert twin.origin and twin.origin[0] is twin.parent
    assert all(getattr(twin, name) == getattr(one, name) for name in AgedSegment.FIELDS if name not in ("parent", "origin"))
    assert copied.take() is twin and leaves.take() is one


@pytest.mark.parametrize(
    "call",
    [
        lambda: Ages(0, EDGES, ()),
        lambda: Ages(128, EDGES, ()),
        lambda: Ages(1, (0,), ()),
        lambda: Ages(1, (3, 3), ()),
        lambda: Ages(1, range(1, 200), ()),
        lambda: Ages(1, EDGES, (0,)),
        lambda: Ages(1, EDGES, (8, 8)),
        lambda: Ages(1, EDGES, (BINS,)),
        lambda: Ages(1, (), (1, 2, 3)),
        lambda: ages().rank(np.zeros((2, BINS), np.float32)),
        lambda: ages().rank(np.zeros((3, BINS))),
        lambda: ages().rank(np.zeros(2 * BINS)),
        lambda: ages().put(segment(kind=2)),
        lambda: ages().put(segment(kind=-1)),
        lambda: ages().put(segment(last=1)),
        lambda: ages().put(segment(last=-1)),
        lambda: Uses(0, EDGES),
        lambda: Uses(1, (2, 1)),
        lambda: Uses(1, EDGES).begin(segment(kind=1)),
        lambda: Uses(1, EDGES).reuse(1, 0, 1),
        lambda: Uses(1, EDGES).reuse(0, -1, 1),
        lambda: Uses(1, EDGES).reuse(0, BINS, 1),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


def broken(name: str, value: object = None) -> AgedSegment:
    """A segment without one of its parts, or with another one."""
    made = segment()
    if value is None:
        delattr(made, name)
    else:
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda: Run(0, [1], None),  # type: ignore[arg-type]
        lambda: Ages(1, ("a",), ()),  # type: ignore[arg-type]
        lambda: Ages(1, EDGES, ("a",)),  # type: ignore[arg-type]
        lambda: Ages(1, 7, ()),  # type: ignore[arg-type]
        lambda: Ages(1, EDGES, 7),  # type: ignore[arg-type]
        lambda: ages().put(7),  # type: ignore[arg-type]
        lambda: ages().bin(Segment(0, (), None)),  # type: ignore[arg-type]
        lambda: ages().put(broken("keys")),
        lambda: ages().put(broken("keys", [1])),
        lambda: ages().rank("abc"),  # type: ignore[arg-type]
        lambda: broken("keys").size,
        lambda: broken("ghost").size,
        lambda: broken("ghost", 7).size,
        lambda: Uses(1, EDGES).begin(broken("ghost", 7)),
        lambda: Uses(1, EDGES).begin(7),  # type: ignore[arg-type]
        lambda: Uses(1, EDGES).change(None),  # type: ignore[arg-type]
        lambda: Uses(1, EDGES).end(None, 0),  # type: ignore[arg-type]
        lambda: Uses(1, EDGES).end(segment(), "a"),  # type: ignore[arg-type]
        lambda: Uses(1, EDGES).look("a"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_another_kind_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        call()


def test_a_segment_is_a_leaf_in_one_place_only() -> None:
    one, other, used = ages(), ages(), segment()
    one.put(used)
    with pytest.raises(ValueError, match="among other leaves"):
        other.put(used)
    del one
    other.put(used)
    assert other.take() is used


def test_parts_that_are_taken_away_while_it_is_a_leaf_make_it_none() -> None:
    leaves, uses = ages(), Uses(2, EDGES)
    for name, value in (("keys", None), ("keys", 7), ("live", 1), ("kind", 1), ("kind", -9), ("last", 2**62)):
        used = segment()
        uses.begin(used)
        leaves.put(used)
        if value is None:
            delattr(used, name)
        else:
            setattr(used, name, value)
        assert leaves.take() is None
        used.use = 2**62
        uses.change(used)
        uses.end(used, 9)


def test_running_out_of_memory_changes_nothing() -> None:
    for calls in range(40):
        leaves, uses = ages(), Uses(2, EDGES)
        segments = [segment(number) for number in range(17)]
        for one in segments[:16]:
            leaves.put(one)
        for _ in range(4096):
            uses.begin(segments[0])
        testcapi.set_nomemory(calls, calls + 1)
        try:
            leaves.put(segments[16])
            uses.begin(segments[0])
            Ages(2, EDGES, STAGES)
            Uses(2, EDGES)
            deepcopy(uses)
            failed = False
        except MemoryError:
            failed = True
        finally:
            testcapi.remove_mem_hooks()
        leaves.put(segments[16])
        uses.begin(segments[0])
        assert len(leaves.leaves()) == 17
        assert [leaves.take().number for _ in range(17)] == [*range(17)]
    assert not failed
