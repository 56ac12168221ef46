"""The cascade's promises. Tiers that hang, fail, dawdle or lie."""

import pytest

from hostile import Clock, Engine, HostileTier, chain, fill
from kvloft.request import Request
from kvloft.transfer.breaker import BreakerState


def test_a_tier_that_hangs_costs_a_bounded_share_and_serving_goes_on() -> None:
    tier = HostileTier()
    tier.put(*(f"k{at}" for at in range(400)))
    tier.hangs = True
    engine = Engine(32, tier, load_share=0.25, demote_share=0.125, pending_seconds=10.0, hang_seconds=5.0)
    for at in range(200):
        request = Request(at)
        engine.ask(request, [f"k{2 * at}", f"k{2 * at + 1}"])
        engine.step(seconds=1.0)
        assert engine.store(request, [f"s{at}a", f"s{at}b"]) is not None
        engine.finish(request)
        stats = engine.pool.stats()
        assert stats.writing <= 8 and stats.pinned <= 4
    assert engine.cascade.stats().tiers["hostile"].loads is BreakerState.OPEN
    engine.step(seconds=6.0)
    assert not engine.cascade.has_pending_work(), "an idle engine does not spin for a tier that hangs"


def test_slots_under_a_hung_load_are_set_aside_until_it_is_answered() -> None:
    """`HostileTier` scribbles into the buffers at each poll until it answers."""
    tier = HostileTier()
    tier.put(*chain("a", 4))
    tier.hangs = True
    engine = Engine(8, tier, load_share=0.5, hang_seconds=5.0)
    request = Request("a")
    engine.ask(request, chain("a", 4))
    engine.step()
    engine.step(seconds=6.0)
    assert engine.ask(request, chain("a", 4)) == 0
    assert engine.cascade.stats().set_aside == engine.pool.stats().writing == 4
    assert engine.store(request, chain("a", 4)) == chain("a", 4)
    engine.step(3)
    engine.load(Request("b"), chain("a", 4))
    tier.hangs = False
    engine.step(2)
    assert engine.cascade.stats().set_aside == 0
    engine.load(Request("b"), chain("a", 4))


def test_a_hung_store_keeps_its_block_readable_and_in_place() -> None:
    tier = HostileTier()
    tier.hangs = True
    engine = Engine(8, tier, demote_share=0.25, hang_seconds=5.0)
    engine.run(Request("a"), ["a0"])
    engine.step()
    engine.step(seconds=6.0)
    fill(engine, 20)
    engine.load(Request("b"), ["a0"])
    tier.hangs = False
    engine.step(2)
    assert tier.shelf["a0"]
    assert engine.pool.stats().pinned == 0


def test_a_tier_that_works_off_a_backlog_does_not_hang() -> None:
    """Each job takes less than the limit; those at the end wait longer than it for their turn."""
    tier = HostileTier(auto=False)
    engine = Engine(64, tier, demote_share=0.25, job_blocks=1, hang_seconds=5.0)
    engine.run(Request("a"), chain("a", 8))
    engine.step()
    for _ in range(8):
        engine.clock.tick(3.0)
        tier.answer(next(iter(tier.jobs)))
        engine.step()
    stats = engine.cascade.stats().tiers["hostile"]
    assert stats.counters["store_ok"] == 8 and "overdue" not in stats.counters and stats.trips == 0


def test_one_job_that_is_never_answered_is_given_up_though_others_are() -> None:
    tier = HostileTier(auto=False)
    engine = Engine(64, tier, demote_share=0.25, job_blocks=1, hang_seconds=5.0)
    engine.run(Request("a"), chain("a", 2))
    engine.step()
    stuck, *_ = tier.jobs
    for at in range(12):
        engine.run(Request(at), [f"b{at}"])
        engine.step()
        engine.clock.tick(3.0)
        for job in [job for job in tier.jobs if job != stuck]:
            tier.answer(job)
        engine.step()
    assert engine.cascade.stats().tiers["hostile"].counters["overdue"] == 1


def test_a_failing_tier_is_left_alone_and_heals_by_itself() -> None:
    tier = HostileTier()
    tier.put(*(f"k{at}" for at in range(60)))
    tier.fails = True
    engine = Engine(32, tier, breaker_failures=3, breaker_seconds=10.0, breaker_longest_seconds=40.0)
    for at in range(3):
        assert engine.serve(Request(at), [f"k{at}"]) == 0
    link = engine.cascade.stats().tiers["hostile"]
    assert link.loads is BreakerState.OPEN
    assert engine.ask(Request("open"), ["k10"]) == 0, "an open breaker answers at once"
    asked = len(tier.loads_asked)
    engine.step(5, seconds=1.0)
    assert len(tier.loads_asked) == asked
    engine.step(seconds=10.0)
    assert engine.ask(Request("probe"), ["k11"]) == 0, "nobody waits for a probe"
    engine.step(2)
    assert tier.loads_asked[asked:] == ["k11"]
    assert engine.cascade.stats().tiers["hostile"].loads is BreakerState.OPEN
    tier.fails = False
    engine.step(seconds=11.0)
    assert engine.ask(Request("too early"), ["k12"]) == 0, "the wait has doubled"
    engine.step(2)
    assert tier.loads_asked[asked:] == ["k11"]
    engine.step(seconds=10.0)
    engine.ask(Request("healer"), ["k13"])
    engine.step(2)
    assert engine.cascade.stats().tiers["hostile"].loads is BreakerState.CLOSED
    assert engine.serve(Request("after"), ["k14"]) == 1


def test_a_medium_that_cannot_be_written_is_still_read() -> None:
    tier = HostileTier()
    tier.put("a0")
    engine = Engine(32, tier, breaker_failures=2, breaker_seconds=10.0, job_blocks=1)
    tier.fails = True
    engine.run(Request("w"), chain("w", 6))
    engine.step(3)
    tier.fails = False
    link = engine.cascade.stats().tiers["hostile"]
    assert (link.stores, link.loads) == (BreakerState.OPEN, BreakerState.CLOSED)
    assert link.counters["dropped_open"] > 0
    assert engine.serve(Request("a"), ["a0"]) == 1
    engine.step(seconds=11.0)
    engine.run(Request("x"), chain("x", 3))
    engine.step(2)
    assert engine.cascade.stats().tiers["hostile"].stores is BreakerState.CLOSED
    engine.run(Request("y"), chain("y", 3))
    engine.step(5)
    assert set(chain("y", 3)) <= set(tier.shelf)


def test_what_is_dropped_on_purpose_trips_nothing() -> None:
    tier = HostileTier()
    tier.refuses = True
    engine = Engine(64, tier, job_blocks=1)
    engine.run(Request("a"), chain("a", 20))
    engine.step(20)
    link = engine.cascade.stats().tiers["hostile"]
    assert link.stores is BreakerState.CLOSED
    assert link.counters["store_dropped"] == 20


def test_a_tier_that_raises_is_a_tier_that_fails() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 4))
    engine = Engine(16, tier)
    tier.raises = True
    for at in range(6):
        assert engine.serve(Request(at), chain("a", 4)) == 0
        engine.run(Request(f"s{at}"), [f"s{at}"])
        engine.step()
    link = engine.cascade.stats().tiers["hostile"]
    assert link.loads is link.stores is BreakerState.OPEN
    tier.raises = False
    for at in range(4):
        engine.step(seconds=100.0)
        engine.run(Request(f"t{at}"), [f"t{at}"])
        engine.ask(Request(f"l{at}"), chain("a", 4))
    assert engine.serve(Request("after"), chain("a", 4)) == 4


def test_answers_to_no_question_change_nothing() -> None:
    tier = HostileTier()
    engine = Engine(16, tier)
    tier.answer_unasked()
    engine.step()
    assert engine.cascade.stats().tiers["hostile"].counters["unasked"] == 1
    engine.assert_clean()


def test_a_tier_slower_than_recomputing_is_skipped_and_probed_again() -> None:
    clock = Clock()
    tier = HostileTier(clock=clock, delay=0.1)
    tier.put(*(f"k{at}" for at in range(200)))
    # 16 tokens at 1600 a second: a block is recomputed in 0.01 s, ten times as fast as it is loaded.
    engine = Engine(64, tier, clock=clock, prefill_tokens_per_second=1600.0, block_tokens=16, probe_seconds=5.0)
    assert engine.serve(Request("first"), ["k0", "k1"]) == 2, "nothing is known of it yet"
    assert engine.serve(Request("second"), ["k2", "k3"]) == 0
    assert engine.cascade.stats().tiers["hostile"].counters["shunned"] == 2
    asked = len(tier.loads_asked)
    engine.step(30, seconds=0.1)
    assert engine.serve(Request("third"), ["k4", "k5"]) == 0
    assert len(tier.loads_asked) == asked
    tier.delay = 0.001
    recovered = None
    for at in range(20):
        engine.step(52, seconds=0.1)
        if engine.serve(Request(f"later{at}"), [f"k{10 + at}", f"k{50 + at}"]) == 2:
            recovered = at
            break
    assert recovered is not None and recovered < 12


def test_a_slow_little_does_not_condemn_much_for_ever() -> None:
    """What a tier takes for one block says little of what it takes for many: probes are as large as jobs."""
    clock = Clock()
    tier = HostileTier(clock=clock)
    tier.put(*chain("a", 64), *chain("b", 64))
    engine = Engine(256, tier, clock=clock, prefill_tokens_per_second=1600.0, block_tokens=16, job_blocks=32)
    engine.cascade._links[0].latency.observe(1, 0.2, clock())
    assert engine.serve(Request("first"), chain("a", 64)) == 0
    engine.step(2)
    assert tier.loads_asked == chain("a", 32)
    assert engine.serve(Request("second"), chain("b", 64)) == 64


def test_what_is_quick_for_a_little_may_be_slow_for_much() -> None:
    """Latency is learned as base and time a block, so the verdict depends on how much is wanted."""
    clock = Clock()
    tier = HostileTier(clock=clock)
    tier.put(*chain("a", 64), *chain("b", 64))
    engine = Engine(256, tier, clock=clock, prefill_tokens_per_second=1600.0, block_tokens=16, job_blocks=64)
    link = engine.cascade._links[0]
    for blocks in (1, 8, 32, 64):
        link.latency.observe(blocks, 0.2 + 0.001 * blocks, clock())
    assert link.latency.predict(16) == pytest.approx(0.216)
    assert engine.serve(Request("few"), chain("a", 4)) == 0
    assert engine.serve(Request("many"), chain("b", 64)) == 64


def test_measured_prefill_rate_counts_as_the_configured_one() -> None:
    clock = Clock()
    tier = HostileTier(clock=clock, delay=0.1)
    tier.put(*(f"k{at}" for at in range(20)))
    engine = Engine(64, tier, clock=clock, block_tokens=16)
    assert engine.serve(Request("a"), ["k0", "k1"]) == 2
    assert engine.serve(Request("b"), ["k2", "k3"]) == 2, "without a rate no tier is too slow"
    engine.cascade.prefill.observe(16_000, 10.0)
    assert engine.serve(Request("c"), ["k4", "k5"]) == 0
