"""Ancestor-closed eviction, in every policy and in HDI by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft import BlockPool, Request
from kvloft.policies import BUILTIN
from kvloft.policies.chained import Chained, _Receding
from kvloft.policies.hdi import HDI
from kvloft.policies.lru import LRU
from kvloft.testing.policies import PolicyLaws

CLOSED = [*(f"{name}+chains" for name in sorted(BUILTIN)), "hdi"]
_PATHS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=7), st.integers(1, 4), st.booleans()), max_size=40
)
"""Requests: a path in a tree of blocks, in how many stores, and whether the load of its prefix is still under way."""


def keys_of(path: list[int]) -> list[tuple[int, ...]]:
    return [tuple(path[: length + 1]) for length in range(len(path))]


def serve(pool: BlockPool, keys: list, request: Request, stores: int, slow: bool) -> None:
    hit = keys[: pool.match_prefix(keys)]
    pool.prepare_load(hit, request)
    if not slow:
        pool.complete_load(hit, request)
    size = -(-len(keys) // stores)
    for start in range(0, len(keys), size):
        plan = pool.prepare_store(keys[start : start + size], request)
        if plan is None:
            break
        pool.complete_store(plan.keys, request)
    if not slow:
        pool.finish(request)


@pytest.mark.parametrize("policy", CLOSED)
@given(paths=_PATHS)
@settings(max_examples=25, deadline=None)
def test_no_block_is_without_its_predecessor(policy: str, paths: list[tuple[list[int], int, bool]]) -> None:
    pool = BlockPool(10, policy)
    for number, (path, stores, slow) in enumerate(paths):
        serve(pool, keys_of(path), Request(number), stores, slow and number % 3 == 0)
        assert not [key for key in pool._index if len(key) > 1 and key[:-1] not in pool]


@pytest.mark.parametrize("policy", ["lru+chains", "arc+chains", "slru+chains"])
def test_a_head_that_nobody_looks_up_is_as_warm_as_its_tail(policy: str) -> None:
    """What the GPU still has is not looked up below."""
    pool = BlockPool(8, policy)
    chain = keys_of([0, 0, 0, 0])
    serve(pool, chain, Request("first"), 1, slow=False)
    serve(pool, keys_of([1, 1, 1, 1]), Request("other"), 1, slow=False)
    tail = Request("tail only")
    pool.complete_load(pool.prepare_load(chain[2:], tail).keys, tail)
    pool.finish(tail)
    serve(pool, keys_of([2, 2, 2]), Request("new"), 1, slow=False)
    assert pool.match_prefix(chain) == 4


class TestChainedLaws(PolicyLaws):
    """In this mode a block that others are behind may not leave, so fewer may than law 1 counts for any policy; but what
    the pool promises it keeps."""

    policy = "lru+chains"

    test_evicts_whatever_may_go = None  # type: ignore[assignment]
    test_pool_machine = None  # type: ignore[assignment]


@given(paths=_PATHS, keep_ghosts=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_trees_of_hdi_are_consistent(paths: list[tuple[list[int], int, bool]], keep_ghosts: bool) -> None:
    class Small(HDI):
        GHOSTS = 8 if keep_ghosts else 1
        PERIOD = 4

    pool = BlockPool(10, Small)
    policy = pool.policy
    for number, (path, stores, slow) in enumerate(paths):
        serve(pool, keys_of(path), Request(number), stores, slow and number % 3 == 0)
        segments = policy._tree.segments
        assert {key for segment in segments.values() for key in segment.keys} == set(pool._index)
        assert all(policy._tree.home[key] == n for n, segment in segments.items() for key in segment.keys)
        for segment in segments.values():
            children = [child for child in segments.values() if child.parent is segment and child.keys]
            assert segment.live == len(children)
        assert sum(segment.evicted for segment in segments.values()) == policy._ghosts.blocks <= Small.GHOSTS * 10
        assert {n for n, segment in segments.items() if segment.evicted} == {
            segment.number for segment in policy._ghosts.segments()
        }


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_a_batch_is_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there are as many chains as blocks to evict, what a policy looks at does not grow with the cache."""
    asked = 0
    contains = _Receding.__contains__

    def count(self: _Receding, key: object) -> bool:
        nonlocal asked
        asked += 1
        return contains(self, key)

    monkeypatch.setattr(_Receding, "__contains__", count)
    work = []
    for chains in (100, 400):
        pool = BlockPool(8 * chains, f"{name}+chains")
        for number in range(chains):
            serve(pool, keys_of([number] * 8), Request(number), 1, slow=False)
        asked = 0
        serve(pool, keys_of([-1] * 64), Request("new"), 1, slow=False)
        assert len(pool) == 8 * chains
        work.append(asked)
    assert work[1] <= work[0] + 64 <= 64 * 12


def test_the_name_says_which_policy_runs_in_this_mode() -> None:
    pools = [BlockPool(8, policy) for policy in ("lru+chains", "s3-fifo+chains")]
    assert [pool.policy.name for pool in pools] == ["lru+chains", "s3-fifo+chains"]


def test_what_a_policy_spares_stands_in_for_what_it_took_before_it() -> None:
    """A policy that passes by the first that it could have: what comes before that one may not leave without it."""

    class Capricious(LRU):
        name = "capricious"

        def evict(self, n, keep, offer):
            free = [key for key in self._queue.keys() if key not in keep]  # noqa: SIM118
            victims = free[-n:]
            self.forget(victims)
            return victims

    pool = BlockPool(12, Chained(Capricious(12)))
    serve(pool, keys_of([0, 0, 0, 0]), Request(1), 1, slow=False)
    serve(pool, keys_of([0, 0, 1, 1]), Request(2), 1, slow=False)
    serve(pool, keys_of([2, 2, 2, 2]), Request(3), 1, slow=False)
    for number in range(3, 9):
        plan = pool.prepare_store(keys_of([number] * 3), Request(number))
        assert plan is not None
        pool.complete_store(plan.keys, Request(number))
        pool.finish(Request(number))
        assert not [key for key in resident(pool) if len(key) > 1 and key[:-1] not in pool]
        assert pool.stats().lists == {"lru": len(pool)}


def resident(pool: BlockPool) -> list[tuple[int, ...]]:
    """Every block that the pool has, by what its policy knows."""
    return list(pool.policy._tree.home)
