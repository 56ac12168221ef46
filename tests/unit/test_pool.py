"""The pool's promises, one by one, where an example says more than the state machine."""

import pytest

from kvloft import BlockPool, EventKind, Lookup, Request
from kvloft.errors import BlockNotReady, ConfigError
from kvloft.policies import CHAINS


@pytest.fixture(params=["lru", "arc", "arc-vllm"])
def pool(request):
    return BlockPool(4, request.param)


def store(pool, keys, name):
    request = Request(name)
    plan = pool.prepare_store(keys, request)
    if plan is not None:
        pool.complete_store(plan.keys, request)
    pool.finish(request)
    return plan


def test_a_block_is_a_miss_then_pending_then_a_hit(pool):
    request = Request(1)
    assert pool.lookup("a", request) is Lookup.MISS
    pool.prepare_store(["a"], request)
    assert pool.lookup("a", request) is Lookup.PENDING
    assert pool.match_prefix(["a"]) == 0
    pool.complete_store(["a"], request)
    assert pool.lookup("a", request) is Lookup.HIT
    assert pool.match_prefix(["a", "b"]) == 1


def test_a_plan_is_a_subsequence_of_the_offer_and_duplicates_are_one(pool):
    store(pool, ["b"], 1)
    plan = pool.prepare_store(["c", "b", "a", "c", "a"], Request(2))
    assert plan.keys == ["c", "a"]
    assert len(set(plan.slots)) == 2
    assert pool.stats().writing == 2


def test_duplicates_in_a_load_leave_no_pin(pool):
    store(pool, ["a"], 1)
    reader = Request(2)
    plan = pool.prepare_load(["a", "a"], reader)
    assert plan.keys == ["a"]
    pool.complete_load({"a"}, reader)
    assert pool.stats().pinned == 0
    assert store(pool, ["w", "x", "y", "z"], 3) is not None


def test_an_empty_plan_is_not_a_refusal(pool):
    store(pool, ["a"], 1)
    plan = pool.prepare_store(["a"], Request(2))
    assert plan is not None and plan.keys == plan.evicted == [] and not plan.slots


def test_pinned_blocks_stay_and_the_rest_goes(pool):
    store(pool, [1, 2, 3, 4], "first")
    reader = Request("reader")
    pool.prepare_load([1, 3], reader)
    assert set(store(pool, [5, 6], "second").evicted) == {2, 4}
    assert store(pool, [7, 8, 9], "third") is None
    pool.complete_load([1, 3], reader)
    assert store(pool, [7, 8, 9], "fourth") is not None


def test_refusals_say_why(pool):
    store(pool, [1, 2, 3, 4], "first")
    assert pool.prepare_store(range(10, 15), Request("large")) is None
    assert pool.prepare_store([1, 2, 3, 5, 6], Request("own")) is None
    pool.prepare_load([1, 2, 3, 4], Request("reader"))
    assert pool.prepare_store([7], Request("waits")) is None
    assert pool.counters.refused == {"size": 1, "protected": 1, "busy": 1}


def test_completions_come_late_twice_and_from_strangers(pool):
    owner, stranger = Request("owner"), Request("stranger")
    pool.prepare_store(["a", "b"], owner)
    assert pool.complete_store(["a"], stranger) == []
    assert pool.lookup("a") is Lookup.PENDING
    pool.finish(owner)
    assert pool.complete_store({"b", "a", "z"}, owner) == ["a", "b"]
    assert pool.complete_store(["a", "b"], owner, success=False) == []
    assert pool.match_prefix(["a", "b"]) == 2
    pool.complete_load(["a"], owner)
    assert pool.stats().pinned == 0
    assert pool.counters.late == 1 + 1 + 2 + 1


def test_a_failed_store_frees_its_slots_and_tells_nobody(pool):
    request = Request(1)
    pool.prepare_store(["a", "b"], request)
    pool.complete_store(["a"], request)
    pool.complete_store(["b"], request, success=False)
    stats = pool.stats()
    assert (stats.free, stats.writing, stats.ready) == (3, 0, 1)
    assert [(event.kind, event.keys) for event in pool.take_events()] == [(EventKind.STORED, ("a",))]


def test_a_completion_from_before_a_reset_is_known_by_its_generation(pool):
    request = Request("lives on")
    old = pool.prepare_store(["a"], request)
    pool.reset()
    new = pool.prepare_store(["a"], request)
    assert pool.complete_store(old.keys, request, generation=old.generation) == []
    assert pool.lookup("a") is Lookup.PENDING
    assert pool.complete_store(new.keys, request, generation=new.generation) == ["a"]


def test_a_load_from_before_a_reset_releases_nothing_of_a_later_one(pool):
    store(pool, ["a"], 1)
    reader = Request("reader")
    old = pool.prepare_load(["a"], reader)
    pool.reset()
    store(pool, ["a"], 2)
    pool.prepare_load(["a"], reader)
    pool.complete_load(["a"], reader, generation=old.generation)
    assert pool.stats().pinned == 1


def test_events_replayed_give_what_is_readable(pool):
    store(pool, [1, 2, 3], "first")
    store(pool, [4, 5], "second")
    pool.reset()
    store(pool, [6], "third")
    kinds = [event.kind for event in pool.take_events()]
    assert kinds == [EventKind.STORED, EventKind.REMOVED, EventKind.STORED, EventKind.CLEARED, EventKind.STORED]
    assert pool.take_events() == []


def test_what_is_not_ready_cannot_be_loaded(pool):
    store(pool, ["a"], 1)
    pool.prepare_store(["b"], Request(2))
    with pytest.raises(BlockNotReady, match="'b' cannot be loaded: it is still being written"):
        pool.prepare_load(["a", "b"], Request(3))
    with pytest.raises(BlockNotReady, match="'c' cannot be loaded: it is not resident"):
        pool.prepare_load(["a", "c"], Request(3))
    assert pool.stats().pinned == 0


def test_finished_requests_leave_nothing_behind(pool):
    for number in range(20):
        request = Request(number)
        plan = pool.prepare_store([number, number + 1], request)
        pool.finish(request)
        pool.complete_store(plan.keys, request)
    assert not pool._lives


def test_a_request_may_go_on_after_its_end(pool):
    request = Request("comes back")
    store(pool, ["a"], "comes back")
    plan = pool.prepare_store(["a", "b"], request)
    pool.complete_store(plan.keys, request)
    pool.finish(request)
    assert pool.match_prefix(["a", "b"]) == 2
    assert not pool._lives


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, "4"])
def test_a_capacity_that_is_none(capacity):
    with pytest.raises(ConfigError, match=r"capacity: .* is not a number of blocks"):
        BlockPool(capacity, "lru")


def test_an_unknown_policy_names_those_that_exist():
    with pytest.raises(ConfigError, match=r"chains' is unknown; choose one of"):
        BlockPool(4, "lru" + 3000 * CHAINS)
    with pytest.raises(ConfigError, match="policy 'lur' is unknown; choose one of: lru, arc"):
        BlockPool(4, "lur")
