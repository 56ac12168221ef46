"""The laws of a policy (see `kvloft.policies.base`), for any policy.

class TestMyPolicy(PolicyLaws):
    policy = MyPolicy
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvloft.policies import Policy
from kvloft.pool import BlockPool
from kvloft.request import Key, Request
from kvloft.testing.pool import PoolMachine, assert_unchanged, drain_order

_RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=25)
"""Requests for the keys start .. start + length - 1."""

_law = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
"""One law is run for many policies, each a class of its own."""


class PolicyLaws:
    """Subclass it, set `policy` to a name or class, and let pytest collect it."""

    policy: ClassVar[str | type[Policy]]
    tails_first: ClassVar[bool] = True
    """Whether the blocks of running requests leave tail first. False for a policy that means otherwise."""
    capacity: ClassVar[int] = 8

    def test_pool_machine(self) -> None:
        """Law 1, and all that the pool promises with this policy."""

        class Machine(PoolMachine):
            policy = self.policy

        run_state_machine_as_test(Machine, settings=settings(stateful_step_count=40, deadline=None))

    @given(runs=_RUNS, wanted=st.integers(1, 8), pinned=st.sets(st.integers(0, 17)))
    @_law
    def test_evicts_whatever_may_go(self, runs: list[tuple[int, int]], wanted: int, pinned: set[int]) -> None:
        """A store that can fit is never refused, whatever list the evictable blocks sit in; else nothing changes."""
        pool = self.pool(runs)
        held = [key for key in pinned if key in pool]
        pool.prepare_load(held, Request("reader"))
        twin = deepcopy(pool)
        plan = pool.prepare_store([("new", n) for n in range(wanted)], Request("writer"))
        if wanted <= self.capacity - len(held):
            assert plan is not None
            assert len(pool) <= self.capacity and all(key in pool for key in held)
        else:
            assert plan is None
            assert_unchanged(twin, pool)

    @given(runs=_RUNS, failing=st.tuples(st.integers(0, 12), st.integers(1, 6)))
    @_law
    def test_failed_store_leaves_no_trace(self, runs: list[tuple[int, int]], failing: tuple[int, int]) -> None:
        """Nothing is learned from bytes that never came, ghost hits included."""
        pool = self.pool(runs)
        request = Request("failing")
        keys = [key for key in range(failing[0], sum(failing)) if key not in pool]
        make_room(pool, len(keys))
        twin = deepcopy(pool)
        plan = pool.prepare_store(keys, request)
        assert plan is not None and not plan.evicted
        pool.complete_store(plan.keys, request, success=False)
        pool.finish(request)
        assert pool.stats().lists == twin.stats().lists
        assert drain_order(pool) == drain_order(twin)

    @given(runs=_RUNS, order=st.permutations(range(3)), ends_first=st.booleans())
    @_law
    def test_completion_order_changes_nothing(self, runs: list[tuple[int, int]], order: list[int], ends_first: bool) -> None:
        """Three stores in flight that complete in another order, before or after their requests end."""
        pool = self.pool(runs)
        make_room(pool, 6)
        requests = [Request(("late", n)) for n in range(3)]
        for n, request in enumerate(requests):
            pool.prepare_store([("late", n, 0), ("late", n, 1)], request)
        twin = deepcopy(pool)
        _complete(twin, requests, range(3), ends_first=False)
        _complete(pool, requests, order, ends_first)
        assert pool.stats().lists == twin.stats().lists
        assert drain_order(pool) == drain_order(twin)

    @given(length=st.integers(2, 8), batch=st.integers(1, 8))
    @_law
    def test_head_outlives_tail(self, length: int, batch: int) -> None:
        """Of one chain, stored in one batch or several, no block leaves before those that need it."""
        pool = BlockPool(self.capacity, self.policy)
        request = Request("chain")
        for start in range(0, length, batch):
            self.store(pool, range(start, min(start + batch, length)), request)
        pool.finish(request)
        left = [key for key in drain_order(pool) if isinstance(key, int)]
        assert left == sorted(left, reverse=True) and len(left) == length

    @given(runs=_RUNS, batches=st.lists(st.integers(1, 3), min_size=1, max_size=4), n=st.integers(1, 8))
    @_law
    def test_tail_leaves_first_while_running(self, runs: list[tuple[int, int]], batches: list[int], n: int) -> None:
        """Of a request that has stored in several batches and goes on, what has left is always the tail."""
        pool = self.pool(runs)
        request = Request("running")
        chain: list[Key] = []
        for size in batches:
            part = [("running", len(chain) + at) for at in range(size)]
            self.store(pool, part, request)
            chain += part
        stored = [key for key in chain if key in pool]
        for at in range(0, 8, n):
            self.store(pool, [("other", at, place) for place in range(n)], Request(("other", at)))
            left = [key for key in stored if key in pool]
            assert not self.tails_first or left == stored[: len(left)]

    @given(runs=_RUNS, again=st.integers(1, 3))
    @_law
    def test_a_block_teaches_once_per_request(self, runs: list[tuple[int, int]], again: int) -> None:
        """Offering and reading a resident prefix many times in one request is one use."""
        pool = self.pool(runs)
        self.request(pool, 0, 3, "first")
        twin = deepcopy(pool)
        keys = [key for key in range(3) if key in pool]
        for target, times in ((pool, 1 + again), (twin, 1)):
            request = Request("again")
            for _ in range(times):
                target.complete_load(target.prepare_load(keys, request).keys, request)
                target.prepare_store(keys, request)
            target.finish(request)
        assert pool.stats().lists == twin.stats().lists
        assert drain_order(pool) == drain_order(twin)

    def test_ghosts_are_bounded_and_counted(self) -> None:
        pool = BlockPool(self.capacity, self.policy)
        for n in range(40 * self.capacity):
            self.store(pool, [("scan", n)], Request(n))
        ghosts = sum(size for name, size in pool.stats().lists.items() if name.startswith("ghost"))
        assert ghosts <= 10 * self.capacity
        pool.reset()
        assert not any(pool.stats().lists.values())

    # Steps.

    def pool(self, runs: Iterable[tuple[int, int]]) -> BlockPool:
        """A pool with a past: requests one after another, each reading the prefix it finds and storing the rest."""
        pool = BlockPool(self.capacity, self.policy)
        for number, (start, length) in enumerate(runs):
            self.request(pool, start, length, number)
        return pool

    def request(self, pool: BlockPool, start: int, length: int, name: object) -> None:
        request = Request(("past", name))
        keys = range(start, start + length)
        hit = keys[: pool.match_prefix(keys)]
        pool.complete_load(pool.prepare_load(hit, request).keys, request)
        self.store(pool, keys, request)
        pool.finish(request)

    def store(self, pool: BlockPool, keys: Iterable[Key], request: Request) -> None:
        plan = pool.prepare_store(keys, request)
        if plan is not None:
            pool.complete_store(plan.keys, request)


def make_room(pool: BlockPool, n: int) -> None:
    """Free n slots, by a store that evicts and then fails."""
    request = Request("room")
    plan = pool.prepare_store([("room", i) for i in range(n)], request)
    assert plan is not None
    pool.complete_store(plan.keys, request, success=False)
    pool.finish(request)


def _complete(pool: BlockPool, requests: list[Request], order: Iterable[int], ends_first: bool) -> None:
    for step in ("finish", "complete") if ends_first else ("complete", "finish"):
        for n in order if step == "complete" else range(len(requests)):
            if step == "finish":
                pool.finish(requests[n])
            else:
                pool.complete_store({("late", n, 0), ("late", n, 1)}, requests[n])
