"""The laws of the pool, as a state machine against a naive model."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvloft.errors import BlockNotReady
from kvloft.policies import Policy
from kvloft.pool import BlockPool, Lookup, StorePlan
from kvloft.request import Key, Request
from kvloft.telemetry import EventKind

KEYS: Sequence[Key] = range(14)
"""Enough to overfill the pool twice; few enough that requests meet."""


@dataclass(eq=False)
class ModelRequest:
    """What the model remembers of a request."""

    request: Request
    chain: set[Key] = field(default_factory=set)
    writing: set[Key] = field(default_factory=set)
    reading: list[Key] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """Drives a `BlockPool` at random and checks each answer against plain dicts and sets.

    Subclass it with `policy` (and `capacity`, if 6 is too small for your policy's segments); the policy is free to choose
    its victims, and the model checks that each was allowed to go.
    """

    policy: str | type[Policy] = "lru"
    capacity = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.capacity, self.policy)
        self.ready: dict[Key, int] = {}
        self.writing: dict[Key, int] = {}
        self.live: list[ModelRequest] = []
        self.ended: list[ModelRequest] = []
        self.before_reset: list[tuple[ModelRequest, list[Key], int]] = []
        self.indexed: set[Key] = set()
        self.ids = count()

    # What a pool is asked.

    @rule()
    def new_request(self) -> None:
        if len(self.live) < 4:
            self.live.append(ModelRequest(Request(next(self.ids))))

    @precondition(lambda self: self.live)
    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=9), data=st.data())
    def store(self, keys: list[Key], data: Any) -> None:
        """Duplicates, residents and more than fits are all fair."""
        self._store(data.draw(st.sampled_from(self.live)), keys)

    @precondition(lambda self: self.live)
    @rule(start=st.integers(0, 10), n=st.integers(1, 5), data=st.data())
    def store_run(self, start: int, n: int, data: Any) -> None:
        """Runs of neighbours, so that prefixes are met again."""
        self._store(data.draw(st.sampled_from(self.live)), KEYS[start : start + n])

    @precondition(lambda self: self._writers())
    @rule(data=st.data(), success=st.integers(0, 4).map(bool))
    def complete_store(self, data: Any, success: bool) -> None:
        """Some or all of what a request writes, in any order, sometimes with keys that it does not write."""
        model = data.draw(st.sampled_from(self._writers()))
        written = data.draw(st.permutations(sorted(model.writing, key=KEYS.index)))
        named = written + data.draw(st.lists(st.sampled_from(KEYS), max_size=2))
        named = named[: data.draw(st.integers(1, len(named)))]
        done = self.pool.complete_store(named, model.request, success)
        expected = set(named) & model.writing
        assert set(done) == expected and len(done) == len(expected)
        model.writing -= expected
        for key in expected:
            slot = self.writing.pop(key)
            if success:
                self.ready[key] = slot
            else:
                model.chain.discard(key)

    @precondition(lambda self: self.live and self.ready)
    @rule(data=st.data())
    def load(self, data: Any) -> None:
        model = data.draw(st.sampled_from(self.live))
        keys = data.draw(st.lists(st.sampled_from(sorted(self.ready, key=KEYS.index)), min_size=1, max_size=4))
        plan = self.pool.prepare_load(keys, model.request)
        assert plan.keys == list(dict.fromkeys(keys))
        assert list(plan.slots) == [self.ready[key] for key in plan.keys]
        model.reading += plan.keys
        model.chain |= set(plan.keys)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def load_what_is_not_ready(self, data: Any, keys: list[Key]) -> None:
        if set(keys) <= self.ready.keys():
            return
        before = self.pool.stats()
        try:
            self.pool.prepare_load(keys, data.draw(st.sampled_from(self.live)).request)
        except BlockNotReady:
            assert self.pool.stats() == before
        else:
            raise AssertionError(f"loaded {keys} though only {[*self.ready]} are ready")

    @precondition(lambda self: any(model.reading for model in self.live + self.ended))
    @rule(data=st.data(), extra=st.lists(st.sampled_from(KEYS), max_size=2))
    def complete_load(self, data: Any, extra: list[Key]) -> None:
        model = data.draw(st.sampled_from([model for model in self.live + self.ended if model.reading]))
        named = data.draw(st.lists(st.sampled_from(sorted(set(model.reading), key=KEYS.index)), min_size=1)) + extra
        self.pool.complete_load(named, model.request)
        for key in set(named):
            if key in model.reading:
                model.reading.remove(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        model = data.draw(st.sampled_from(self.live))
        self.pool.finish(model.request)
        self.live.remove(model)
        self.ended.append(model)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def finish_again(self, data: Any) -> None:
        order = drain_order(self.pool)
        self.pool.finish(data.draw(st.sampled_from(self.ended)).request)
        assert drain_order(self.pool) == order

    @rule(odds=st.integers(0, 9))
    def reset(self, odds: int) -> None:
        if odds:
            return
        for model in self.live + self.ended:
            named = [*model.writing, *model.reading]
            if named:
                self.before_reset.append((model, named, self.pool.generation))
            model.chain, model.writing, model.reading = set(), set(), []
        self.pool.reset()
        self.ready.clear()
        self.writing.clear()

    @precondition(lambda self: self.before_reset)
    @rule(data=st.data(), success=st.booleans())
    def complete_from_before_reset(self, data: Any, success: bool) -> None:
        model, named, generation = data.draw(st.sampled_from(self.before_reset))
        order = drain_order(self.pool)
        assert self.pool.complete_store(named, model.request, success, generation) == []
        self.pool.complete_load(named, model.request, generation)
        assert drain_order(self.pool) == order

    # What holds at every moment.

    @invariant()
    def sizes_add_up(self) -> None:
        stats = self.pool.stats()
        assert stats.free + stats.writing + stats.ready == stats.capacity == self.capacity
        assert stats.ready == len(self.ready) and stats.writing == len(self.writing)
        assert stats.pinned == len({key for model in self.live + self.ended for key in model.reading})
        listed = sum(size for name, size in stats.lists.items() if not name.startswith("ghost"))
        assert listed == len(self.ready) + len(self.writing), stats.lists

    @invariant()
    def lookups_are_true(self) -> None:
        for key in KEYS:
            expected = Lookup.HIT if key in self.ready else Lookup.PENDING if key in self.writing else Lookup.MISS
            assert self.pool.lookup(key) is expected
        run = takewhile(self.ready.__contains__, KEYS)
        assert self.pool.match_prefix(KEYS) == len(list(run))

    @invariant()
    def slots_are_nobody_elses(self) -> None:
        used = [*self.ready.values(), *self.writing.values()]
        assert len(set(used)) == len(used) and set(used) <= set(range(self.capacity))

    @invariant()
    def events_tell_what_is_readable(self) -> None:
        for event in self.pool.take_events():
            if event.kind is EventKind.STORED:
                assert self.indexed.isdisjoint(event.keys)
                self.indexed.update(event.keys)
            elif event.kind is EventKind.REMOVED:
                assert self.indexed.issuperset(event.keys)
                self.indexed.difference_update(event.keys)
            else:
                self.indexed.clear()
        assert self.indexed == self.ready.keys()

    # Steps.

    def _writers(self) -> list[ModelRequest]:
        return [model for model in self.live + self.ended if model.writing]

    def _store(self, model: ModelRequest, keys: Sequence[Key]) -> None:
        offered = list(dict.fromkeys(keys))
        resident = self.ready.keys() | self.writing.keys()
        new = [key for key in offered if key not in resident]
        pinned = {key for other in self.live + self.ended for key in other.reading}
        evictable = self.ready.keys() - pinned - set(offered) - model.chain
        need = len(new) - (self.capacity - len(resident))
        twin = deepcopy(self.pool)
        plan = self.pool.prepare_store(keys, model.request)
        if need > len(evictable):
            assert plan is None, f"{need} blocks must leave, only {evictable} may, and the store was not refused"
            assert_unchanged(twin, self.pool)
            return
        assert plan is not None, f"{need} blocks must leave, {evictable} may, and the store was refused"
        self._check(plan, new, max(need, 0), evictable)
        model.chain |= {key for key in offered if key in self.ready}
        for key in plan.evicted:
            del self.ready[key]
        self.writing.update(zip(plan.keys, plan.slots, strict=True))
        model.chain |= set(new)
        model.writing |= set(new)

    def _check(self, plan: StorePlan, new: list[Key], need: int, evictable: set[Key]) -> None:
        assert plan.keys == new
        assert len(plan.slots) == len(new)
        assert len(plan.evicted) == len(set(plan.evicted)) == need
        assert set(plan.evicted) <= evictable


def drain_order(pool: BlockPool) -> list[Key]:
    """In which order the blocks that may leave would leave, one store of one new block after another. The pool stays as it
    is: a copy is drained."""
    twin = deepcopy(pool)
    order: list[Key] = []
    for number in count():
        request = Request(("drain", number))
        plan = twin.prepare_store([("drain", number)], request)
        if plan is None:
            return order
        order += plan.evicted
        # Never completed: what it wrote cannot be chosen again.
    raise AssertionError("unreachable")


def assert_unchanged(before: BlockPool, after: BlockPool) -> None:
    """Everything but the count of refusals is as it was: contents, sizes of all lists, counters, events, future choices."""
    old, new = before.stats(), after.stats()
    new.counters.refused = old.counters.refused
    assert old == new
    assert deepcopy(before).take_events() == deepcopy(after).take_events()
    assert drain_order(before) == drain_order(after)
