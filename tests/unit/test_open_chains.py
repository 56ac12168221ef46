"""While a request runs, the tail of what it has stored leaves before the head, whoever needs the room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloft import BlockPool, Request
from kvloft.testing.pool import drain_order

POLICIES = ["lru", "arc"]


def store(pool, keys, request):
    plan = pool.prepare_store(keys, request)
    pool.complete_store(plan.keys, request)
    return plan


@pytest.mark.parametrize("policy", POLICIES)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), others=st.integers(0, 1))
def test_the_tail_of_a_running_request_leaves_first(policy, sizes, others):
    pool = BlockPool(20, policy)
    running = Request("running")
    start = 0
    for size in sizes:
        store(pool, range(start, start + size), running)
        start += size
        for other in range(others):
            request = Request((start, other))
            store(pool, [("other", start, other)], request)
            pool.finish(request)
    left = [key for key in drain_order(pool) if isinstance(key, int)]
    assert left == list(range(start))[::-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_two_running_requests_each_lose_their_tails(policy):
    pool = BlockPool(8, policy)
    first, second = Request("first"), Request("second")
    for batch in (0, 2):
        store(pool, [("a", batch), ("a", batch + 1)], first)
        store(pool, [("b", batch), ("b", batch + 1)], second)
    left = [key for key in drain_order(pool) if key[0] in "ab"]
    assert [at for name, at in left if name == "a"] == [at for name, at in left if name == "b"] == [3, 2, 1, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tail_in_use_stays_and_the_next_one_goes(policy):
    pool = BlockPool(4, policy)
    running = Request("running")
    store(pool, [0, 1], running)
    store(pool, [2, 3], running)
    pool.prepare_load([3], Request("reader"))
    assert store(pool, ["new"], Request("other")).evicted == [2]


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_remembered_of_requests_that_ended(policy):
    pool = BlockPool(4, policy)
    for number in range(10):
        request = Request(number)
        for key in range(3):
            store(pool, [(number, key)], request)
        pool.finish(request)
    assert not pool.policy._running._chains and not pool.policy._running._owners


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_whose_blocks_all_left_is_forgotten_too(policy):
    pool = BlockPool(2, policy)
    gone, other = Request("gone"), Request("other")
    store(pool, [0, 1], gone)
    store(pool, [2, 3], other)
    pool.finish(gone)
    pool.finish(other)
    assert not pool.policy._running._chains
