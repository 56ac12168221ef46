"""Small inputs on which a policy once went wrong, each with the right answer."""

import itertools

import pytest

from kvloft import BlockPool, Request


def serve(pool, keys, name):
    request = Request(name)
    plan = pool.prepare_store(keys, request)
    assert plan is not None
    pool.complete_store(plan.keys, request)
    pool.finish(request)
    return plan


def test_w_tinylfu_evicts_a_challenger_that_has_just_won():
    pool = BlockPool(2, "w-tinylfu")
    for number, keys in enumerate([[0, 3], [0, 1], [3, 2], [1, 0], [3, 2]]):
        serve(pool, keys, number)
        assert pool.match_prefix(keys) == 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize("names", list(itertools.permutations(range(5))))
def test_a_segment_kept_in_part_is_closed_over_for_what_is_behind_it(names):
    """a-b-c and a-b-c-d share a segment; a and d are being read, so all four must stay."""
    a, b, c, d, new = names
    pool = BlockPool(4, "lru+chains")
    serve(pool, [a, b, c], 1)
    serve(pool, [a, b, c, d], 2)
    pool.prepare_load([a], Request(3))
    pool.prepare_load([d], Request(4))
    assert pool.prepare_store([new], Request(5)) is None


@pytest.mark.timeout(20)
def test_room_made_ahead_of_need_spares_what_others_need():
    pool = BlockPool(4, "lru+chains")
    serve(pool, ["a", "b", "c"], 1)
    serve(pool, ["a", "b", "c", "d"], 2)
    pool.hold(["d"])
    assert pool.withdraw(3) == []
    pool.release(["d"])
    assert [key for key, _ in pool.withdraw(3)] == ["d", "c", "b"]


@pytest.mark.parametrize("policy", ["arc+chains", "arc-vllm+chains", "lru+chains"])
def test_a_request_that_names_a_later_block_first_counts_each_once(policy):
    pool = BlockPool(8, policy)
    serve(pool, ["a", "b", "c"], 1)
    request = Request(2)
    pool.complete_load(pool.prepare_load(["c"], request).keys, request)
    pool.complete_load(pool.prepare_load(["a", "b"], request).keys, request)
    pool.finish(request)
    assert pool.match_prefix(["a", "b", "c"]) == 3
