"""ARC's decisions, against worked examples and a naive model written from the paper."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft import BlockPool, Request
from kvloft.policies.arc import ARC, B1, B2, T1, T2
from kvloft.testing.pool import assert_unchanged, drain_order


def store(pool: BlockPool, keys: Iterable[object], name: object):
    request = Request(name)
    plan = pool.prepare_store(keys, request)
    if plan is not None:
        pool.complete_store(plan.keys, request)
    pool.finish(request)
    return plan


def three_and_four_once_five_and_six_twice() -> BlockPool:
    """Keys 3 and 4 in T1, 5 and 6 in T2 (5 the more recent), capacity 4, a target above T1's size."""
    pool = BlockPool(4, "arc")
    store(pool, [5, 6], "stores 5 and 6")
    store(pool, [5, 6], "uses 5 and 6 again")
    store(pool, [3], "stores 3")
    store(pool, [4], "stores 4")
    pool.policy.target = 3.0
    assert pool.policy.sizes() == {"t1": 2, "t2": 2, "ghost_b1": 0, "ghost_b2": 0}
    pool.take_events()
    return pool


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
@pytest.mark.parametrize(
    ("offer", "pinned", "evicted"),
    [
        ([7, 8, 9], [], [6, 5, 3]),
        ([7, 8, 9, 10], [], [6, 5, 3, 4]),
        ([7, 8], [5, 6], [3, 4]),
        ([5, 6, 7, 8], [], [3, 4]),
        ([3, 7], [5, 6], [4]),
    ],
)
def test_a_pass_goes_on_with_the_other_list(policy, offer, pinned, evicted):
    pool = three_and_four_once_five_and_six_twice()
    pool.policy.__class__ = type(BlockPool(1, policy).policy)
    reader = Request("reader")
    pool.prepare_load(pinned, reader)
    writer = Request("writer")
    plan = pool.prepare_store(offer, writer)
    assert plan.evicted == evicted
    assert plan.keys == [key for key in offer if key > 6]
    pool.complete_store(plan.keys, writer)
    readable = pool.match_prefix(plan.keys)
    assert readable == len(plan.keys)
    assert pool.match_prefix([key for key in offer if key <= 6] + pinned) == len(offer) - len(plan.keys) + len(pinned)


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
def test_what_cannot_fit_changes_nothing(policy):
    pool = three_and_four_once_five_and_six_twice()
    pool.policy.__class__ = type(BlockPool(1, policy).policy)
    pool.prepare_load([5, 6], Request("reader"))
    before = three_and_four_once_five_and_six_twice()
    before.policy.__class__ = pool.policy.__class__
    before.prepare_load([5, 6], Request("reader"))
    assert pool.prepare_store([3, 7, 8], Request("writer")) is None
    assert_unchanged(before, pool)
    assert pool.policy.target == 3.0
    assert pool.take_events() == []
    assert pool.counters.refused == {"protected": 1}


def test_t1_may_shrink_below_its_target():
    pool = three_and_four_once_five_and_six_twice()
    pool.prepare_load([5, 6], Request("reader"))
    assert store(pool, [7, 8], "writer").evicted == [3, 4]
    assert pool.policy.target == 3.0
    assert pool.policy.sizes()["ghost_b1"] == 2


class NaiveARC:
    """The paper's figure 4, one key at a time, on plain lists; index 0 is least recent."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def replace(self, x) -> None:
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def request(self, x) -> bool:
        if x in self.t1 or x in self.t2:
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return True
        full = len(self.t1) + len(self.t2) == self.c
        if x in self.b1:
            self.p = min(self.p + max(1.0, len(self.b2) / len(self.b1)), self.c)
            if full:
                self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
            return False
        if x in self.b2:
            self.p = max(self.p - max(1.0, len(self.b1) / len(self.b2)), 0.0)
            if full:
                self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
            return False
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        else:
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if total >= self.c:
                if total == 2 * self.c:
                    self.b2.pop(0)
                self.replace(x)
        self.t1.append(x)
        return False


@given(st.integers(1, 8), st.lists(st.integers(0, 20), max_size=300))
@settings(deadline=None)
def test_one_block_at_a_time_it_is_the_paper(capacity, keys):
    pool, naive = BlockPool(capacity, "arc"), NaiveARC(capacity)
    for number, key in enumerate(keys):
        assert (pool.match_prefix([key]) == 1) == naive.request(key)
        store(pool, [key], number)
        policy = pool.policy
        assert isinstance(policy, ARC)
        assert policy.target == naive.p
        assert [policy._lists.keys(queue) for queue in (T1, T2, B1, B2)] == [naive.t1, naive.t2, naive.b1, naive.b2]


def ghost_of_t1(policy: str) -> BlockPool:
    """Capacity 2, T1 and T2 hold one block each, "a" is a ghost of T1."""
    pool = BlockPool(2, policy)
    store(pool, ["b"], 0)
    store(pool, ["b"], 1)
    store(pool, ["a"], 2)
    store(pool, ["c"], 3)
    assert pool.policy.sizes() == {"t1": 1, "t2": 1, "ghost_b1": 1, "ghost_b2": 0}
    return pool


@pytest.mark.parametrize(("policy", "enters"), [("arc", "t2"), ("arc-vllm", "t1")])
def test_where_a_ghost_hit_reenters(policy, enters):
    pool = ghost_of_t1(policy)
    before = pool.policy.sizes()[enters]
    room = Request("room")
    pool.prepare_store(["d"], room)
    pool.complete_store(["d"], room, success=False)
    before = pool.policy.sizes()[enters]
    store(pool, ["a"], 4)
    assert pool.policy.sizes()[enters] == before + 1
    assert pool.policy.target == 1.0
    assert pool.policy._lists.queue("a") == {"t1": T1, "t2": T2}[enters]


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
def test_failed_and_refused_stores_never_move_the_target(policy):
    pool = ghost_of_t1(policy)
    for number in range(5):
        request = Request(("fails", number))
        plan = pool.prepare_store(["a"], request)
        pool.complete_store(plan.keys, request, success=False)
        pool.finish(request)
    pool.prepare_load([key for key in "bc" if pool.match_prefix([key])], Request("reader"))
    pool.prepare_store(["x"], Request("fills"))
    for number in range(5):
        assert pool.prepare_store(["a", "y", "z"], Request(("refused", number))) is None
    assert pool.policy.target == 0.0
    assert pool.policy._lists.queue("a") == B1


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
def test_a_failed_store_leaves_its_ghosts_where_they_were(policy):
    pool = BlockPool(6, policy)
    for number, keys in enumerate(["xyz", "xyz", "abc", "de"]):
        store(pool, list(keys), number)
    lists = pool.policy._lists
    before = lists.keys(B1)
    assert len(before) == 2
    for times in range(1, 3):
        fails = Request(("fails", times))
        plan = pool.prepare_store([before[0], "new"], fails)
        assert before[0] not in lists.keys(B1)
        pool.complete_store(plan.keys, fails, success=False)
        pool.finish(fails)
        assert lists.keys(B1)[:2] == before
    assert not pool.policy._gaps


def test_a_ghost_hit_teaches_once_per_request():
    pool = BlockPool(2, "arc")
    store(pool, ["b"], 0)
    store(pool, ["b"], 1)
    store(pool, ["a"], 2)
    store(pool, ["c"], 3)
    long = Request("long")
    plan = pool.prepare_store(["a"], long)
    pool.complete_store(plan.keys, long)
    target = pool.policy.target
    # "a" leaves for other requests' blocks and comes back from the ghosts, in the same request.
    for number in range(10):
        if "a" not in pool:
            break
        store(pool, [("other", number), ("more", number)], ("other", number))
    assert "a" not in pool
    moved = pool.policy.target
    plan = pool.prepare_store(["a"], long)
    pool.complete_store(plan.keys, long)
    assert target > 0 and pool.policy.target == moved


def test_stores_in_flight_count_when_choosing_but_teach_on_commit():
    pool = ghost_of_t1("arc")
    first = Request("first")
    plan = pool.prepare_store(["a"], first)
    assert pool.policy.target == 0.0
    pool.complete_store(plan.keys, first)
    assert pool.policy.target == 1.0
    assert drain_order(pool)
