"""Scans do not wipe what is used again and again; heads are stored without their tails, never tails without their heads."""

import pytest

from kvloft import BlockPool, Request
from kvloft.policies import BUILTIN
from kvloft.policies.admission import ScanGuard

POLICIES = sorted(BUILTIN)


def read(pool: BlockPool, keys: list, times: int) -> None:
    for _ in range(times):
        request = Request(object())
        pool.complete_load(pool.prepare_load(keys, request).keys, request)
        pool.finish(request)


def filled(policy: str, capacity: int = 16) -> tuple[BlockPool, list]:
    """A pool that holds a prefix of four blocks that was reused five times, and blocks that nobody reused."""
    pool = BlockPool(capacity, policy, ScanGuard(capacity))
    prefix = [("prefix", place) for place in range(4)]
    for name, keys in (("prefix", prefix), ("once", [("once", place) for place in range(capacity - 4)])):
        plan = pool.prepare_store(keys, Request(name))
        pool.complete_store(plan.keys, Request(name))
        pool.finish(Request(name))
    read(pool, prefix, 5)
    return pool, prefix


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_as_large_as_the_cache_leaves_the_prefix(policy: str) -> None:
    pool, prefix = filled(policy)
    scan = [("scan", place) for place in range(16)]
    plan = pool.prepare_store(scan, Request("scan"))
    assert plan.keys == scan[:12], "the head that fits"
    assert pool.match_prefix(prefix) == 4
    assert pool.stats().counters.declined == 4


@pytest.mark.parametrize("policy", ["lru", "arc", "slru", "hdi"])
def test_a_scan_in_many_small_stores_is_one(policy: str) -> None:
    pool, prefix = filled(policy)
    request = Request("scan")
    stored = []
    for start in range(0, 40, 2):
        plan = pool.prepare_store([("scan", start), ("scan", start + 1)], request)
        pool.complete_store(plan.keys, request)
        stored += plan.keys
    assert pool.match_prefix(prefix) == 4
    assert stored == [("scan", place) for place in range(len(stored))], "what is stored is a head"
    assert len(stored) == 12


def test_what_is_cut_is_stored_when_it_is_offered_again() -> None:
    pool, prefix = filled("lru")
    request = Request("scan")
    scan = [("scan", place) for place in range(16)]
    pool.complete_store(pool.prepare_store(scan, request).keys, request)
    assert not pool.prepare_store([("scan", 20)], request).keys, "its predecessor is missing"
    pool.finish(request)
    del prefix
    again = Request("again")
    plan = pool.prepare_store(scan, again)
    assert plan.keys == [], "the shield holds"


def test_what_was_not_used_for_long_is_shielded_no_more() -> None:
    pool, prefix = filled("lru")
    for number in range(40):
        request = Request(number)
        pool.complete_store(pool.prepare_store([(number, place) for place in range(8)], request).keys, request)
        pool.finish(request)
    assert pool.match_prefix(prefix) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_rule_a_store_is_whole(policy: str) -> None:
    pool = BlockPool(16, policy)
    plan = pool.prepare_store(list(range(16)), Request(1))
    pool.complete_store(plan.keys, Request(1))
    pool.finish(Request(1))
    assert len(pool.prepare_store(list(range(20, 36)), Request(2)).keys) == 16
    assert pool.prepare_store(list(range(40, 57)), Request(3)) is None
