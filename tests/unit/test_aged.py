"""The compiled leaves, uses and ghosts: what is out of range is refused, what is many stays small, and nothing leaks."""

import gc
import sys
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from aged_models import NaiveAges, NaiveUses
from kvloft._table import Ages, Ghosts, Homes, Run, ShadowLRU, Uses, untracked
from kvloft.policies.ages import STAGES, AgedSegment
from kvloft.policies.chains import Segment
from kvloft.policies.hazard import BINS, EDGES

testcapi = pytest.importorskip("_testcapi", reason="this Python cannot be made to run out of memory")


OTHERS = Ghosts()


def segment(number: int = 0, *, last: int = 0, kind: int = 0, blocks: int = 1) -> AgedSegment:
    made = AgedSegment(number, tuple(range(blocks)), None)
    made.last, made.kind = last, kind
    return made


def ages(classes: int = 2) -> Ages:
    return Ages(classes, EDGES, STAGES)


def test_whoever_leaves_a_bin_is_counted_once() -> None:
    """However seldom one looks: by looking, by a new use, or by a mixture of both."""
    for pace in (1, 7, 1000):
        naive = NaiveUses(NaiveAges(2, EDGES, STAGES))
        uses = Uses(clock := ages())
        segments = [segment(number, kind=number % 2) for number in range(60)]
        for request in range(1, 3000):
            clock.tick()
            naive.ages.clock = request
            used = segments[(request * request) % 60]
            uses.end(used)
            naive.end(used, False)
            for one in (uses, naive):
                one.begin(used)
            if request % pace == 0:
                uses.look()
        uses.look()
        naive.look()
        assert (np.frombuffer(uses.take(), np.int64).reshape(3, 2, BINS) == naive.take()).all()


def test_uses_older_than_any_bin_are_forgotten() -> None:
    uses = Uses(clock := ages())
    for number in range(EDGES[-1] // 2):
        for _ in range(8):
            clock.tick()
        uses.begin(used := segment(number))
        if number % 128 == 0:
            uses.look()
    assert len(uses) < 3 * EDGES[-1] / 8
    assert used.use == number
    uses.end(used)
    uses.end(segment())
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
    leaves.take_before(1)
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
    one.kind, one.owner = 1, ("request",)
    one.origin = (above, 1, 0, 3)
    leaves.put(one)
    ghosts = Ghosts()
    ghosts.evict(one, ("y", "x"))
    copied, copied_ghosts, twin = deepcopy((leaves, ghosts, one))
    assert copied_ghosts.find(["x", "y"]) == (twin, 2) and ghosts.find("x") == (one, 1)
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
        lambda: ages().index(segment(kind=2)),
        lambda: ages().put(segment(kind=-1)),
        lambda: ages().put(segment(last=1)),
        lambda: ages().put(segment(last=-1)),
        lambda: Uses(ages(1)).begin(segment(kind=1)),
        lambda: Uses(ages(1)).end(segment(kind=1)),
        lambda: Uses(ages(1)).reuse(1, 0, 1),
        lambda: Uses(ages(1)).reuse(0, -1, 1),
        lambda: Uses(ages(1)).reuse(0, BINS, 1),
        lambda: Ghosts().drop(segment(), -1),
        lambda: Ghosts().part(segment(), 1, segment()),
        lambda: Ghosts().evict(lost(), "a"),
        lambda: Ghosts().drop(lost(), 1),
        lambda: Uses(ages()).again([segment()], (), ()),
        lambda: Uses(ages()).again([segment()], (), (2,)),
        lambda: ShadowLRU(-1),
        lambda: ShadowLRU(1).lose(segment(), -1),
        lambda: ShadowLRU(1).lacking(segment(), 2**40),
        lambda: ShadowLRU(1).regain(segment(), -1),
        lambda: ShadowLRU(1).forget(segment(), -1, 0),
        lambda: ShadowLRU(1).forget(segment(), 0, 2**31),
        lambda: Homes().cut(segment(), 2),
        lambda: Homes().cut(segment(), -1),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


def lost() -> AgedSegment:
    """A segment that has lost blocks to other ghosts."""
    OTHERS.evict(made := segment(), ("lost",))
    return made


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
        lambda: ages().index(7),  # type: ignore[arg-type]
        lambda: segment().free(1),  # type: ignore[call-arg]
        lambda: segment().free("a", ()),  # type: ignore[arg-type]
        lambda: segment().free(1, 7),  # type: ignore[arg-type]
        lambda: broken("keys").free(1, ()),
        lambda: ages().put(broken("keys")),
        lambda: ages().put(broken("keys", [1])),
        lambda: ages().rank("abc"),  # type: ignore[arg-type]
        lambda: ages().take_before("a"),  # type: ignore[arg-type]
        lambda: broken("keys").size,
        lambda: Uses(7),  # type: ignore[arg-type]
        lambda: Uses(ages()).begin(broken("keys")),
        lambda: Uses(ages()).begin(7),  # type: ignore[arg-type]
        lambda: Uses(ages()).change(None),  # type: ignore[arg-type]
        lambda: Uses(ages()).end(None),  # type: ignore[arg-type]
        lambda: Uses(ages()).again([7], (), (0,)),  # type: ignore[list-item]
        lambda: Uses(ages()).again([segment()], 7, (0,)),  # type: ignore[arg-type]
        lambda: Uses(ages()).again([segment()], (), ("a",)),  # type: ignore[arg-type]
        lambda: Uses(ages()).again([segment()], (), [0]),  # type: ignore[arg-type]
        lambda: Uses(ages()).again(segment(), (), (0,)),  # type: ignore[arg-type]
        lambda: ShadowLRU("a"),  # type: ignore[arg-type]
        lambda: ShadowLRU(1).use([7]),  # type: ignore[list-item]
        lambda: ShadowLRU(1).use([broken("keys")]),
        lambda: ShadowLRU(1).lose(segment()),  # type: ignore[call-arg]
        lambda: ShadowLRU(1).lacking(7, 1),  # type: ignore[arg-type]
        lambda: ShadowLRU(1).regain(segment(), "a"),  # type: ignore[arg-type]
        lambda: ShadowLRU(1).forget(segment(), 1, None),  # type: ignore[arg-type]
        lambda: ShadowLRU(1).remember("a"),  # type: ignore[arg-type]
        lambda: Uses(ages()).reuse("a", 0, 1),  # type: ignore[arg-type]
        lambda: Ghosts(1),  # type: ignore[call-arg]
        lambda: Ghosts().evict(7, ()),  # type: ignore[arg-type]
        lambda: Ghosts().evict(segment(), [[]]),  # type: ignore[list-item]
        lambda: Ghosts().extend(segment(), 7),  # type: ignore[arg-type]
        lambda: Ghosts().find(7),  # type: ignore[arg-type]
        lambda: Ghosts().find([[]]),  # type: ignore[list-item]
        lambda: Ghosts().part(segment(), 1, None),  # type: ignore[arg-type]
        lambda: Homes().cut(7, 1),  # type: ignore[arg-type]
        lambda: Homes().cut(segment()),  # type: ignore[call-arg]
        lambda: Homes().cut(broken("keys"), 0),
        lambda: Homes().along([], 0, {}),  # type: ignore[arg-type]
        lambda: Homes().along((4,), "a", {}),  # type: ignore[arg-type]
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
    leaves = ages()
    uses = Uses(leaves)
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


def test_running_out_of_memory_changes_nothing() -> None:
    for calls in range(150):
        uses, empty = Uses(leaves := ages()), Uses(ages())
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
            Uses(leaves)
            deepcopy(empty)
            Ghosts().evict(segments[16], ("a", "b"))
            failed = False
        except MemoryError:
            failed = True
        finally:
            testcapi.remove_mem_hooks()
        leaves.put(segments[16])
        uses.begin(segments[0])
        assert segments[16].evicted == 0
        assert len(leaves.leaves()) == 17
        assert [leaves.take().number for _ in range(17)] == [*range(17)]
    assert not failed


def test_ghosts_that_are_gone_leave_nothing() -> None:
    ghosts, one = Ghosts(), segment()
    ghosts.evict(one, range(1000))
    assert (one.evicted, one.size, ghosts.blocks) == (1000, 1001, 1000)
    del ghosts
    assert (one.evicted, one.size) == (0, 1)
    Ghosts().evict(one, "ab")


class Wild:
    """A key that runs code when it is hashed."""

    def __init__(self, on_hash: Callable[[], object]) -> None:
        self.on_hash = on_hash

    def __hash__(self) -> int:
        self.on_hash()
        return 5


def test_keys_that_change_the_ghosts_that_look_for_them() -> None:
    ghosts, one = Ghosts(), segment()
    ghosts.evict(one, [5, 5, 1])
    assert ghosts.find([1, Wild(lambda: ghosts.drop(one, 3)), 5]) == (one, 1)
    ghosts.evict(one, [Wild(lambda: ghosts.evict(one, [7])), 1])
    assert ghosts.find([1, 5, 7]) == (one, 3)

    def fail() -> None:
        raise ZeroDivisionError

    for call in (ghosts.find, lambda keys: ghosts.evict(one, keys), lambda keys: ghosts.extend(one, keys)):
        with pytest.raises(ZeroDivisionError):
            call([1, Wild(fail)])
    assert (ghosts.blocks, one.evicted) == (3, 3)


def test_a_key_that_leaves_while_it_is_asked_for_lives_until_it_was() -> None:
    told: list[str] = []

    class Mortal(Wild):
        def __eq__(self, other: object) -> bool:
            told.append("compared")
            return False

        __hash__ = Wild.__hash__

        def __del__(self) -> None:
            told.append("gone")

    class Thief(Mortal):
        def __eq__(self, other: object) -> bool:
            one.keys = ()
            return NotImplemented

        __hash__ = Wild.__hash__

    thief, one = Thief(int), AgedSegment(0, (Mortal(int),), None)
    assert Uses(ages()).again([one], {thief}, (0, 1)) == (1, 1)
    assert told == ["compared", "gone"] and one.reads == 1


def test_along_a_chain_of_segments() -> None:
    homes = Homes()
    segments = {7: Segment(7, (b"a", "b", 3), None), 8: Segment(8, (4,), None)}
    for number, one in segments.items():
        homes.put(one.keys, number)
    one, two = segments.values()
    along = homes.along
    assert along((b"a", "b", 3, 4), 0, segments) == ([one, two], 1, 4)
    assert along((b"a", "b", 3, 4), 3, segments) == ([two], 1, 4)
    assert along(("b", 3, 4), 0, segments) == ([one], 3, 2), "not from its head: the chain may come back to it"
    assert along(("b", 4), 0, segments) == ([one], 2, 1)
    assert along((b"a", b"c"), 0, segments) == ([one], 1, 1), "not to its end"
    assert along((), 0, segments) == ([], 0, 0) and along((4,), 7, segments) == ([], 0, 7)
    for key, known in (("x", segments), (4, {})):
        with pytest.raises(KeyError):
            along((key,), 0, known)
    two.keys = (5,)
    with pytest.raises(KeyError):
        along((4,), 0, segments)


def test_a_segment_loses_its_tail() -> None:
    homes, one = Homes(), AgedSegment(0, untracked(range(5)), None)
    homes.put(one.keys, 0)
    assert homes.cut(one, 0) == [] and homes.cut(one, 2) == [4, 3]
    assert one.keys == (0, 1, 2) and [*homes] == [0, 1, 2] and not gc.is_tracked(one.keys)
    homes.remove([2])
    with pytest.raises(KeyError):
        homes.cut(one, 1)
    assert one.keys == (0, 1, 2)


def test_what_is_not_asked_for_stays_where_it_is_when_a_tail_leaves() -> None:
    """Others may have the tuple of keys."""
    homes, one = Homes(), segment(blocks=5)
    homes.put(one.keys, 0)
    shared = one.keys
    assert homes.cut(one, 2) == [4, 3] and shared == (0, 1, 2, 3, 4) and one.keys == (0, 1, 2)
    del shared
    assert homes.cut(one, 1) == [2] and homes.cut(one, 2) == [1, 0] and one.keys == ()


def test_uses_that_lru_has_lost_are_forgotten() -> None:
    shadow, one = ShadowLRU(10), segment(blocks=4)
    for _ in range(50_000):
        shadow.use([segment(blocks=4)])
    had = [shadow.use([one]), shadow.use([one])]
    assert had == [0, 4] and one.stamp == 50_002
    one.stamp = 2**60
    shadow.lose(one, 1)
    one.stamp = -5
    shadow.lose(one, 1)
    assert (shadow.apart, shadow.lacking(one, 9)) == (0, 0)
    shadow.remember(0)


def test_what_may_leave_lies_behind_what_is_kept() -> None:
    one = segment(blocks=6)
    for keep in (set, list, dict.fromkeys):
        assert [one.free(4, keep(kept)) for kept in ([], [0], [2], [4, 1], [5])] == [4, 4, 3, 1, 0]
    assert one.free(9, ()) == 6 and one.free(0, ()) == 0 and one.free(-1, ()) == 0
