"""Inputs that go wrong in other offload managers, each with the right answer. The shipped laws cover them at random; here
they stand one by one."""

import pytest

from kvloft import BlockPool, Lookup, Request
from kvloft.policies import ARC

POLICIES = ["lru", "arc", "arc-vllm"]


@pytest.fixture(params=POLICIES)
def make(request):
    return lambda capacity: BlockPool(capacity, request.param)


def serve(pool: BlockPool, keys, name) -> None:
    """A request that loads what is there of its prefix and stores the rest."""
    request, hits = Request(name), pool.match_prefix(keys)
    pool.prepare_load(keys[:hits], request)
    pool.complete_load(keys[:hits], request)
    plan = pool.prepare_store(keys[hits:], request)
    assert plan is not None
    pool.complete_store(plan.keys, request)
    pool.finish(request)


def books_close(pool: BlockPool) -> None:
    stats = pool.stats()
    assert stats.free + stats.writing + stats.ready == pool.capacity
    assert stats.pinned == stats.writing == 0


def test_a_key_offered_twice_takes_one_slot(make):
    pool, request = make(4), Request("a")
    plan = pool.prepare_store(["x", "y", "x"], request)
    assert plan.keys == ["x", "y"] and len(set(plan.slots)) == 2
    pool.complete_store(["x", "y"], request)
    assert pool.stats().free == 2
    books_close(pool)


def test_a_key_loaded_twice_leaves_no_pin(make):
    pool, request = make(4), Request("a")
    serve(pool, ["x", "y"], "before")
    pool.prepare_load(["y", "x", "y"], request)
    pool.complete_load(["y", "x", "y"], request)
    books_close(pool)


def test_completions_after_a_reset_change_nothing(make):
    pool, reader, writer = make(4), Request("reader"), Request("writer")
    serve(pool, ["x"], "before")
    pool.prepare_load(["x"], reader)
    pool.prepare_store(["y"], writer)
    pool.reset()
    pool.complete_load(["x"], reader)
    pool.complete_store(["y"], writer)
    assert pool.lookup("x") is pool.lookup("y") is Lookup.MISS
    assert pool.stats().free == 4 and pool.stats().counters.late == 2


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "failed"])
def test_the_target_does_not_drift_on_stores_that_bring_nothing(policy, refused):
    """A ghost key offered again and again in vain: its request polls, and nothing is learned from that."""
    pool = BlockPool(4, policy)
    arc = pool.policy
    assert isinstance(arc, ARC)
    for number, key in enumerate("aabcde"):
        serve(pool, [key], number)
    assert arc.sizes() == {"t1": 3, "t2": 1, "ghost_b1": 1, "ghost_b2": 0}
    if refused:
        pool.prepare_load(["a", "c", "d", "e"], Request("reader"))
    before = (arc.target, arc.sizes())
    for number in range(10):
        writer = Request(("writer", number))
        plan = pool.prepare_store(["b"], writer)
        assert (plan is None) == refused
        pool.complete_store(["b"], writer, success=False)
        pool.finish(writer)
        if not refused and not number:
            # The first one evicted; from then on a slot is free and even the lists stay.
            before = (before[0], arc.sizes())
    assert (arc.target, arc.sizes()) == before
    if not refused:
        serve(pool, ["b"], "at last")
        assert arc.target > before[0], "the store that succeeds teaches"


def test_a_long_prompt_stored_in_parts_keeps_its_head(make):
    """16 blocks, four at a time, into 12 slots: elsewhere the fourth batch evicts the first, and no prefix is left."""
    pool, request = make(12), Request("long")
    keys = list(range(16))
    for start in range(0, 12, 4):
        plan = pool.prepare_store(keys[start : start + 4], request)
        pool.complete_store(plan.keys, request)
    assert pool.prepare_store(keys[12:], request) is None
    assert pool.stats().counters.refused == {"protected": 1}
    pool.finish(request)
    assert pool.match_prefix(keys) == 12


def test_a_store_does_not_evict_what_its_request_loaded(make):
    pool, request = make(8), Request("again")
    serve(pool, ["h1", "h2", "h3", "h4"], "first")
    serve(pool, ["o1", "o2", "o3", "o4"], "other")
    pool.prepare_load(["h1", "h2", "h3", "h4"], request)
    pool.complete_load(["h1", "h2", "h3", "h4"], request)
    plan = pool.prepare_store(["t1", "t2", "t3", "t4"], request)
    assert sorted(plan.evicted) == ["o1", "o2", "o3", "o4"]


@pytest.mark.parametrize("policy", ["arc", "arc-vllm"])
def test_a_scan_that_leaves_room_spares_a_reused_prefix(policy):
    pool, prefix = BlockPool(12, policy), ["p1", "p2", "p3", "p4"]
    for number in range(6):
        serve(pool, prefix, number)
    for scan in range(5):
        serve(pool, [(scan, block) for block in range(8)], ("scan", scan))
    assert pool.match_prefix(prefix) == 4


def test_a_scan_as_large_as_the_pool_is_stored_all_the_same(make):
    """A store that can fit is never refused, and a policy alone can't keep what must go for it; an admission rule can.
    What was lost is soon as good as before: in ARC its ghosts know it."""
    pool, prefix = make(12), ["p1", "p2", "p3", "p4"]
    for number in range(6):
        serve(pool, prefix, number)
    serve(pool, list(range(12)), "scan")
    assert pool.match_prefix(list(range(12))) == 12 and pool.match_prefix(prefix) == 0
    serve(pool, prefix, "back")
    if pool.policy.name == "arc":
        assert pool.policy.sizes()["t2"] == 4
    assert pool.match_prefix(prefix) == 4
    books_close(pool)
