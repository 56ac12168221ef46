"""The laws of the cascade, as a state machine: an engine with two tiers that misbehave, against plain dicts."""

import logging
from itertools import count
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hostile import Clock, Engine, HostileTier, content
from kvloft.pool import Lookup
from kvloft.request import Request
from kvloft.testing.pool import drain_order
from kvloft.tiers.base import Presence
from kvloft.transfer.limits import Admission

logging.getLogger("kvloft.transfer").setLevel(logging.CRITICAL)

SLOTS = 12
PENDING = 10.0
HANG = 4.0
CHAINS = [[f"{name}{at}" for at in range(6)] for name in "abc"] + [
    [f"a{at}" for at in range(3)] + [f"d{at}" for at in range(9)]
]
KEYS = sorted({key for chain in CHAINS for key in chain})


class Life:
    """One request of the model."""

    def __init__(self, number: int, chain: list[str]) -> None:
        self.request = Request(number)
        self.chain = chain
        self.pending_since: float | None = None
        self.reading: list[list[str]] = []
        self.generation = 0


class CascadeMachine(RuleBasedStateMachine):
    """Whatever tiers do: right bytes or a miss, bounded waits, bounded slots, and nothing left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.tiers = [HostileTier("near", auto=False, clock=self.clock), HostileTier("far", auto=False, clock=self.clock)]
        self.live: list[Life] = []
        self.ids = count()

    @initialize(
        admission=st.sampled_from(["everything", "second-use", "write-back"]), policy=st.sampled_from(["lru", "arc"])
    )
    def begin(self, admission: Admission, policy: str) -> None:
        self.engine = Engine(
            SLOTS,
            *self.tiers,
            clock=self.clock,
            policy=policy,
            admission=admission,
            pending_seconds=PENDING,
            hang_seconds=HANG,
            idle_seconds=6.0,
            promote_share=0.5,
            load_share=0.34,
            demote_share=0.2,
            clean_share=0.17,
            job_blocks=2,
            breaker_failures=2,
            breaker_seconds=2.0,
            breaker_longest_seconds=8.0,
            prefill_tokens_per_second=16.0,
        )

    # The engine.

    @rule(chain=st.sampled_from(CHAINS))
    def new_request(self, chain: list[str]) -> None:
        if len(self.live) < 4:
            self.live.append(Life(next(self.ids), chain))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), allowed=st.sampled_from([None, None, None, ["near"], ["far"], []]))
    def ask(self, data: Any, allowed: list[str] | None) -> None:
        """Look up a chain as the scheduler does; load what is a hit, wait no longer than agreed."""
        life = data.draw(st.sampled_from(self.live))
        hits = self.engine.ask(life.request, life.chain, allowed)
        order = drain_order(self.engine.pool)
        assert self.engine.ask(life.request, life.chain, allowed) == hits
        assert drain_order(self.engine.pool) == order
        if hits is None:
            life.pending_since = self.clock() if life.pending_since is None else life.pending_since
            assert self.clock() - life.pending_since < PENDING + 6.0, "a request waits beyond its deadline"
            return
        life.pending_since = None
        if hits:
            life.reading.append(self.engine.begin_load(life.request, life.chain[:hits]).keys)
            life.generation = self.engine.pool.generation
        else:
            self.engine.cascade.started(life.request)

    @precondition(lambda self: any(life.reading for life in self.live))
    @rule(data=st.data())
    def end_load(self, data: Any) -> None:
        life = data.draw(st.sampled_from([life for life in self.live if life.reading]))
        self.engine.pool.complete_load(life.reading.pop(), life.request, life.generation)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), start=st.integers(0, 8), n=st.integers(1, 3))
    def store(self, data: Any, start: int, n: int) -> None:
        life = data.draw(st.sampled_from(self.live))
        before = self.engine.pool.stats()
        stored = self.engine.store(life.request, life.chain[start : start + n])
        if stored is None:
            kept = set().union(*(set(keys) for other in self.live for keys in other.reading), life.chain)
            for_running = SLOTS - 6 - 2 - len(kept)
            assert n > for_running, f"a store of {n} was refused: {before}"

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        life = data.draw(st.sampled_from(self.live))
        self.live.remove(life)
        self.engine.finish(life.request)
        for keys in life.reading:
            self.engine.pool.complete_load(keys, life.request, life.generation)

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.1, 1.0, 5.0]))
    def step(self, seconds: float) -> None:
        self.engine.step(seconds=seconds)

    @rule(odds=st.integers(0, 9))
    def reset(self, odds: int) -> None:
        if not odds:
            self.engine.cascade.reset()
            for life in self.live:
                life.reading.clear()
                life.pending_since = None

    # The tiers.

    @precondition(lambda self: any(tier.jobs for tier in self.tiers))
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        tier = data.draw(st.sampled_from([tier for tier in self.tiers if tier.jobs]))
        tier.answer(data.draw(st.sampled_from(tier.jobs)))

    @rule(which=st.integers(0, 1), mood=st.sampled_from(["fails", "lies", "raises", "unknown", "refuses"]), on=st.booleans())
    def change_mood(self, which: int, mood: str, on: bool) -> None:
        setattr(self.tiers[which], mood, on)

    @rule(which=st.integers(0, 1), key=st.sampled_from(KEYS), how=st.sampled_from(["put", "forget", "corrupt"]))
    def change_shelf(self, which: int, key: str, how: str) -> None:
        tier = self.tiers[which]
        if how == "forget":
            tier.shelf.pop(key, None)
        elif how == "put":
            tier.put(key)
        elif key in tier.shelf:
            tier.shelf[key] = b"corrupt" + tier.shelf[key][7:]

    # What holds at every moment.

    @invariant()
    def what_is_readable_is_right(self) -> None:
        pool = self.engine.pool
        for key in KEYS:
            if pool.lookup(key) is Lookup.HIT:
                (slot,) = pool.hold([key])
                pool.release([key])
                assert self.engine.host.holds(key, slot), f"{key} has wrong bytes in host memory"

    @invariant()
    def what_a_tier_keeps_is_right(self) -> None:
        for tier in self.tiers:
            for key, data in tier.shelf.items():
                assert data == content(key) or data.startswith(b"corrupt"), f"{key} was written down with wrong bytes"

    @invariant()
    def slots_in_use_are_bounded(self) -> None:
        stats, pool = self.engine.cascade.stats(), self.engine.pool.stats()
        assert pool.free + pool.writing + pool.ready == SLOTS
        assert stats.loading + stats.held + stats.set_aside <= SLOTS // 2
        assert sum(link.storing for link in stats.tiers.values()) <= 2
        for tier in self.tiers:
            assert sum(len(job.keys) for job in tier.jobs if job.store) <= stats.tiers[tier.name].storing
            assert sum(len(job.keys) for job in tier.jobs if not job.store) <= stats.tiers[tier.name].loading <= 2

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.wind_up()

    def wind_up(self) -> None:
        """From any state: once tiers answer and requests end, every slot, pin and record is released, and tiers heal."""
        for tier in self.tiers:
            tier.fails = tier.raises = tier.refuses = tier.lies = tier.unknown = False
            tier.auto = True
        for life in self.live:
            self.engine.finish(life.request)
            for keys in life.reading:
                self.engine.pool.complete_load(keys, life.request, life.generation)
        self.engine.step(40, seconds=1.0)
        self.engine.assert_clean()
        assert not self.engine.cascade.has_pending_work()
        assert not self.engine.pool._lives, "a finished request is remembered"
        self.tiers[0].put("c0", "c1")
        self.engine.step(seconds=100.0)
        for at in range(4):
            self.engine.run(Request(f"heals{at}"), [f"heals{at}"])
            self.engine.ask(Request(f"asks{at}"), ["c0"])
            self.engine.step(3, seconds=100.0)
            self.engine.finish(Request(f"asks{at}"))
        assert self.tiers[0].lookup(["c0"]) == [Presence.HIT]
        assert self.engine.serve(Request("after"), ["c0"]) == 1, "the tier has healed and is not used"


CascadeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, phases=[Phase.generate])
TestCascadeMachine = CascadeMachine.TestCase
