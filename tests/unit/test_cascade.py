"""The cascade's promises, one test each."""

import pytest

from hostile import BLOCK_BYTES, Clock, Engine, HostileTier
from kvloft.errors import ConfigError
from kvloft.pool import Lookup
from kvloft.request import Request
from kvloft.tiers.memory import MemoryTier
from kvloft.transfer.breaker import BreakerState
from kvloft.transfer.limits import CascadeConfig


def chain(name: str, n: int) -> list[str]:
    return [f"{name}{at}" for at in range(n)]


def fill(engine: Engine, n: int, name: str = "other") -> None:
    """Push everything else out of host memory."""
    for at in range(n):
        engine.run(Request(f"{name}{at}"), [f"{name}-block{at}"])


# Down.


def test_what_is_stored_goes_down_in_the_background() -> None:
    tier = MemoryTier()
    engine = Engine(16, tier)
    engine.run(Request("a"), chain("a", 5))
    assert tier.stats().blocks == 0
    assert engine.cascade.has_pending_work()
    engine.step(4)
    assert tier.lookup(chain("a", 5)) == tier.lookup(["a0"]) * 5
    assert tier.stats().blocks == 5
    assert not engine.cascade.has_pending_work()
    engine.assert_clean()


def test_blocks_at_rest_are_not_written_again() -> None:
    tier = HostileTier()
    tier.put("a0", "a1")
    engine = Engine(16, tier)
    engine.run(Request("a"), chain("a", 3))
    engine.step(4)
    assert tier.stores_asked == ["a2"]
    assert engine.cascade.stats().tiers["hostile"].counters["present"] == 2


def test_backpressure_drops_demotions_and_never_stores() -> None:
    tier = HostileTier(auto=False)
    engine = Engine(16, tier, demote_share=0.25, queue_share=0.25, hang_seconds=1e9)
    for at in range(40):
        assert engine.store(Request(at), [f"k{at}"]) is not None
        engine.finish(Request(at))
        engine.step()
        assert engine.pool.stats().pinned <= 4
    counters = engine.cascade.stats().tiers["hostile"].counters
    assert len(tier.stores_asked) == 4
    assert counters["dropped_backpressure"] + counters["dropped_gone"] >= 40 - 4 - 4
    for job in list(tier.jobs):
        tier.answer(job)
    tier.auto = True
    engine.step(5)
    engine.assert_clean()


def test_blocks_evicted_before_their_turn_are_dropped_and_counted() -> None:
    tier = HostileTier()
    engine = Engine(4, tier)
    engine.store(Request("a"), ["a0", "a1"])
    engine.finish(Request("a"))
    fill(engine, 4)
    engine.step(6)
    assert engine.cascade.stats().tiers["hostile"].counters["dropped_gone"] >= 2
    assert "a0" not in tier.shelf


def test_second_use_admits_what_comes_back() -> None:
    tier = HostileTier()
    engine = Engine(8, tier, admission="second-use")
    engine.run(Request("a"), ["a0", "a1"])
    engine.step(3)
    assert tier.stores_asked == []
    engine.load(Request("b"), ["a0"])
    engine.finish(Request("b"))
    engine.step(3)
    assert tier.stores_asked == ["a0"]
    fill(engine, 8)
    engine.run(Request("c"), ["a1"])
    engine.step(3)
    assert "a1" in tier.stores_asked
    assert not any("other" in key for key in tier.stores_asked)


def test_second_use_remembers_a_bounded_number_of_keys() -> None:
    engine = Engine(4, HostileTier(), admission="second-use", ghost_share=2.0)
    fill(engine, 9)
    engine.run(Request("again"), ["other-block0"])
    engine.step(3)
    assert "other-block0" not in engine.cascade._links[0].tier.shelf
    engine.run(Request("later"), ["other-block8"])
    fill(engine, 5, "more")
    engine.run(Request("late"), ["other-block8"])
    engine.step(3)
    assert engine.cascade._links[0].tier.stores_asked == ["other-block8"]


def test_write_back_writes_what_leaves_and_keeps_slots_free() -> None:
    tier = HostileTier()
    engine = Engine(16, tier, admission="write-back", clean_share=0.25)
    engine.run(Request("a"), chain("a", 12))
    engine.step(3)
    assert tier.stores_asked == []
    engine.run(Request("b"), chain("b", 2))
    engine.step(3)
    assert set(tier.shelf) == {"a11", "a10"}
    assert engine.pool.free == 4
    assert engine.cascade.lookup("a11", Request("c")) is Lookup.PENDING
    engine.finish(Request("c"))
    engine.assert_clean()


def test_write_back_reads_a_slot_to_the_end_before_it_is_used_again() -> None:
    """`HostileTier` asserts that the bytes it was given to write stay the same until it answers."""
    tier = HostileTier(auto=False)
    engine = Engine(8, tier, admission="write-back", clean_share=0.25, demote_share=0.25, hang_seconds=1.0)
    for round_ in range(6):
        engine.run(Request(round_), chain(f"r{round_}", 4))
        engine.step(seconds=2.0)
        assert engine.pool.stats().writing <= 2
    for job in list(tier.jobs):
        tier.answer(job)
    engine.step()
    assert engine.pool.stats().writing == 0


def test_all_tiers_get_what_they_lack() -> None:
    fast, slow = HostileTier("fast"), HostileTier("slow")
    slow.put("a0")
    engine = Engine(16, fast, slow)
    assert engine.serve(Request("a"), ["a0"]) == 1
    engine.store(Request("a"), ["a0", "a1"])
    engine.step(4)
    assert set(fast.shelf) == set(slow.shelf) == {"a0", "a1"}
    assert slow.stores_asked == ["a1"]


# Up.


def test_a_hit_below_is_pending_until_it_lies_in_host_memory() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 3))
    engine = Engine(16, tier)
    request = Request("a")
    assert engine.ask(request, chain("a", 4)) is None
    engine.step(2)
    assert [engine.cascade.lookup(key, request) for key in chain("a", 4)] == [Lookup.PENDING] * 3 + [Lookup.MISS]
    tier.answer(tier.jobs[0])
    assert engine.ask(request, chain("a", 4)) is None
    engine.step()
    assert engine.ask(request, chain("a", 4)) == 3
    engine.load(request, chain("a", 3))
    assert [engine.cascade.source(key, request) for key in chain("a", 4)] == ["hostile"] * 3 + [None]
    engine.finish(request)
    assert engine.cascade.source("a0", request) is None
    engine.assert_clean()


def test_a_frame_that_does_not_verify_is_a_miss_and_never_a_hit() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 3))
    tier.shelf["a1"] = b"x" * BLOCK_BYTES
    engine = Engine(16, tier)
    assert engine.serve(Request("a"), chain("a", 3)) == 1
    assert engine.cascade.lookup("a1", Request("b")) is Lookup.MISS
    engine.finish(Request("a"))
    engine.assert_clean()


def test_what_one_tier_does_not_deliver_comes_from_the_next() -> None:
    first, second = HostileTier("first"), HostileTier("second")
    first.lies = True
    second.put(*chain("a", 3))
    engine = Engine(16, first, second)
    assert engine.serve(Request("a"), chain("a", 3)) == 3
    assert engine.cascade.source("a0", Request("a")) == "second"
    first.fails = True
    assert engine.serve(Request("b"), chain("a", 3)) == 3


def test_only_the_tiers_a_request_allows() -> None:
    first, second = HostileTier("first"), HostileTier("second")
    first.put("a0")
    second.put("a0", "a1")
    engine = Engine(16, first, second)
    assert engine.ask(Request("none"), ["a0"], []) == 0
    assert engine.serve(Request("a"), ["a0", "a1"], ["second"]) == 2
    assert first.loads_asked == []


def test_a_tier_that_must_look_is_asked_once_a_step_for_all() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 6))
    tier.unknown = True
    engine = Engine(16, tier)
    request = Request("a")
    assert engine.ask(request, chain("a", 7)) is None
    asked = tier.lookups
    assert engine.ask(request, chain("a", 7)) is None
    assert tier.lookups == asked
    engine.step()
    assert tier.lookups == asked + 1
    tier.unknown = False
    assert engine.serve(request, chain("a", 7)) == 6


def test_a_tier_that_does_not_know_is_not_waited_for_long() -> None:
    tier = HostileTier()
    tier.put("a0", "a1")
    tier.unknown = True
    engine = Engine(16, tier, lookup_seconds=1.0)
    assert engine.ask(Request("a"), ["a0", "a1"]) is None
    engine.step(seconds=0.5)
    assert engine.ask(Request("a"), ["a0", "a1"]) is None
    engine.step(seconds=0.6)
    assert engine.ask(Request("a"), ["a0", "a1"]) == 0


def test_no_step_hands_out_more_than_its_quota() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 40))
    engine = Engine(256, tier, step_blocks=10, job_blocks=4)
    engine.run(Request("b"), chain("b", 20))
    engine.ask(Request("a"), chain("a", 40))
    for step in range(1, 4):
        engine.step()
        assert len(tier.loads_asked) == 10 * step
        assert len(tier.stores_asked) <= 12 * step
    assert set(tier.stores_asked) == set(chain("b", 20))


def test_loads_under_way_are_shared() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 4))
    engine = Engine(16, tier)
    a, b = Request("a"), Request("b")
    engine.ask(a, chain("a", 4))
    engine.step()
    assert engine.ask(b, chain("a", 4)) is None
    engine.finish(a)
    engine.step()
    assert tier.loads_asked == chain("a", 4)
    tier.answer(tier.jobs[0])
    engine.step()
    assert engine.ask(b, chain("a", 4)) == 4
    assert engine.cascade.stats().held == 4
    engine.load(b, chain("a", 4))
    engine.finish(b)
    engine.assert_clean()


def test_pending_ends_at_its_deadline_with_what_is_there() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 8))
    engine = Engine(32, tier, job_blocks=4, pending_seconds=10.0, hang_seconds=60.0)
    request = Request("a")
    engine.ask(request, chain("a", 8))
    engine.step()
    tier.answer(tier.jobs[0])
    for _ in range(9):
        engine.step(seconds=1.0)
        assert engine.ask(request, chain("a", 8)) is None
    engine.step(seconds=1.0)
    assert engine.ask(request, chain("a", 8)) == 4


def test_what_waits_for_room_beyond_the_deadline_is_not_loaded_any_more() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 6), *chain("b", 6))
    engine = Engine(16, tier, promote_share=0.5, pending_seconds=10.0, idle_seconds=100.0)
    a, b = Request("a"), Request("b")
    engine.ask(a, chain("a", 6))
    engine.step(2)
    assert engine.ask(b, chain("b", 6)) is None
    engine.step(seconds=11.0)
    assert engine.ask(b, chain("b", 6)) == 0
    assert engine.cascade.stats().counters["expired"] == 6
    engine.finish(a)
    engine.step(3)
    assert tier.loads_asked == chain("a", 6)


def test_pending_for_another_requests_store_has_the_same_deadline() -> None:
    engine = Engine(8, pending_seconds=10.0)
    engine.pool.prepare_store(["a0"], Request("writer"))
    for _ in range(10):
        assert engine.ask(Request("reader"), ["a0"]) is None
        engine.step(seconds=1.0)
    assert engine.ask(Request("reader"), ["a0"]) == 0


def test_a_hit_longer_than_host_memory_is_served_as_the_prefix_that_fits() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 100))
    engine = Engine(16, tier, promote_share=0.5)
    assert engine.serve(Request("a"), chain("a", 100)) == 8
    engine.finish(Request("a"))
    engine.assert_clean()


def test_a_prefix_in_host_memory_counts_for_what_fits() -> None:
    """Its tail must not push out its own head."""
    tier = HostileTier()
    tier.put(*chain("a", 16))
    engine = Engine(16, tier, promote_share=0.5)
    engine.run(Request("before"), chain("a", 6))
    assert engine.serve(Request("a"), chain("a", 16)) == 8
    engine.finish(Request("a"))
    engine.run(Request("long"), chain("a", 12))
    assert engine.serve(Request("b"), chain("a", 16)) == 12


def test_two_requests_that_do_not_fit_together_are_served_one_after_the_other() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 6), *chain("b", 6))
    engine = Engine(16, tier, promote_share=0.5)
    a, b = Request("a"), Request("b")
    assert engine.ask(a, chain("a", 6)) is None
    assert engine.ask(b, chain("b", 6)) is None
    engine.step(3)
    assert engine.ask(b, chain("b", 6)) is None
    assert engine.ask(a, chain("a", 6)) == 6
    engine.load(a, chain("a", 6))
    assert engine.serve(b, chain("b", 6)) == 6
    engine.finish(a)
    engine.finish(b)
    engine.assert_clean()


def test_promotions_leave_room_for_running_stores() -> None:
    tier = HostileTier(auto=False)
    engine = Engine(16, tier, promote_share=0.5, hang_seconds=1e9, pending_seconds=1e9)
    for at in range(20):
        tier.put(*chain(f"r{at}-", 3))
        engine.ask(Request(at), chain(f"r{at}-", 3))
        engine.step()
    running = Request("running")
    for at in range(3):
        assert engine.store(running, [f"s{at}", f"t{at}"]) is not None


def test_landed_blocks_of_a_request_that_waits_are_kept() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 4))
    engine = Engine(16, tier, job_blocks=2)
    request = Request("a")
    engine.ask(request, chain("a", 4))
    engine.step()
    tier.answer(tier.jobs[0])
    engine.step()
    fill(engine, 40)
    assert [engine.cascade.lookup(key, request) for key in chain("a", 2)] == [Lookup.HIT] * 2
    tier.answer(tier.jobs[0])
    engine.step()
    fill(engine, 40, "more")
    assert engine.serve(request, chain("a", 4)) == 4


def test_nothing_is_kept_for_a_request_that_stops_asking() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 4))
    engine = Engine(16, tier, idle_seconds=5.0)
    engine.ask(Request("a"), chain("a", 4))
    engine.step(2)
    assert engine.cascade.stats().held == 4
    engine.step(seconds=6.0)
    assert engine.cascade.stats().held == 0
    assert engine.cascade.stats().counters["abandoned"] == 1
    engine.assert_clean()


def test_a_request_that_starts_without_loading_keeps_nothing() -> None:
    tier = HostileTier()
    tier.put("a0")
    engine = Engine(16, tier)
    engine.ask(Request("a"), ["a0"])
    engine.step(2)
    engine.cascade.started(Request("a"))
    engine.assert_clean()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_releases_everything(steps: int) -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 8))
    engine = Engine(16, tier, load_share=0.25, job_blocks=2)
    engine.ask(Request("a"), chain("a", 8))
    for _ in range(steps):
        engine.step()
        if tier.jobs:
            tier.answer(tier.jobs[0])
    engine.finish(Request("a"))
    tier.auto = True
    engine.step(4)
    assert len(tier.loads_asked) < 8 or steps == 3
    engine.assert_clean()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_reset_releases_everything_but_slots_in_a_tiers_hands(steps: int) -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 6))
    engine = Engine(16, tier, load_share=0.25, job_blocks=2, demote_share=0.25)
    engine.run(Request("s"), chain("s", 4))
    engine.ask(Request("a"), chain("a", 6))
    engine.step(steps)
    in_hand = sum(len(job.keys) for job in tier.jobs)
    engine.cascade.reset()
    assert engine.pool.free == 16 - in_hand
    assert engine.store(Request("new"), chain("n", 16 - in_hand)) is not None
    for job in list(tier.jobs):
        tier.answer(job)
    engine.step()
    assert engine.pool.stats().writing == 0
    assert [engine.host.holds(key, engine.pool.hold([key])[0]) for key in chain("n", 2)] == [True] * 2


def test_a_reset_keeps_a_slot_that_two_tiers_read_until_both_have_answered() -> None:
    first, second = HostileTier("first", auto=False), HostileTier("second", auto=False)
    engine = Engine(4, first, second)
    engine.run(Request("a"), ["a0"])
    engine.step()
    engine.cascade.reset()
    first.answer(first.jobs[0])
    engine.step()
    assert engine.pool.free == 3
    second.answer(second.jobs[0])
    engine.step()
    assert engine.pool.free == 4


def test_a_reset_keeps_slots_that_others_use_until_all_have_let_go() -> None:
    tier = HostileTier(auto=False)
    engine = Engine(8, tier)
    engine.run(Request("a"), ["a0"])
    engine.step()
    slots = list(engine.begin_load(Request("b"), ["a0"]).slots)
    assert engine.pool.busy_slots() == slots
    engine.cascade.reset(slots)
    engine.cascade.let_go(slots)
    assert engine.pool.free == 7
    tier.answer(tier.jobs[0])
    engine.step()
    assert engine.pool.free == 8


def test_a_reset_keeps_slots_of_loads_under_way_though_the_engine_lets_go_of_them() -> None:
    """An engine cannot tell a store of its own from a promotion; whoever is told of its end, the tier still writes."""
    tier = HostileTier(auto=False)
    tier.put("a0")
    engine = Engine(8, tier)
    engine.ask(Request("a"), ["a0"])
    engine.step()
    slots = engine.pool.busy_slots()
    assert len(slots) == 1
    engine.cascade.reset(slots)
    engine.cascade.let_go(slots)
    assert engine.pool.free == 7
    tier.answer(tier.jobs[0])
    engine.step()
    assert engine.pool.free == 8 and engine.cascade.stats().set_aside == 0


# Trouble.


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


# Quiet.


def test_lookups_are_idempotent_and_no_access() -> None:
    tier = HostileTier()
    tier.put(*chain("b", 4))
    engine = Engine(8, tier)
    engine.run(Request("x"), ["x0"])
    engine.run(Request("y"), ["y0"])
    request = Request("reader")
    before = engine.pool.stats()
    for _ in range(5):
        assert engine.cascade.lookup("x0", request) is Lookup.HIT
        assert engine.cascade.lookup("b0", request) is Lookup.PENDING
        assert engine.cascade.lookup("nowhere", request) is Lookup.MISS
    assert engine.pool.stats() == before
    assert tier.touched == []
    engine.finish(request)
    plan = engine.pool.prepare_store([f"new{at}" for at in range(7)], Request("new"))
    assert plan is not None and plan.evicted == ["x0"]


def test_lookups_of_a_waiting_request_ask_no_tier_twice() -> None:
    tier = HostileTier(auto=False)
    tier.put(*chain("a", 20))
    engine = Engine(64, tier)
    for _ in range(10):
        assert engine.ask(Request("a"), chain("a", 20)) is None
        engine.step()
    assert tier.lookups == 20
    assert tier.loads_asked == chain("a", 20)[: len(tier.loads_asked)]


def test_promoted_blocks_count_as_hits_once_and_not_as_misses() -> None:
    tier = HostileTier()
    tier.put(*chain("a", 4))
    engine = Engine(16, tier)
    engine.serve(Request("a"), chain("a", 4))
    engine.load(Request("a"), chain("a", 4))
    counters = engine.pool.stats().counters
    assert (counters.hits, counters.misses, counters.stored) == (4, 0, 4)


def test_tiers_hear_of_use_once_a_step() -> None:
    tier = HostileTier()
    engine = Engine(16, tier)
    engine.run(Request("a"), chain("a", 2))
    engine.step(3)
    engine.load(Request("b"), chain("a", 2))
    engine.load(Request("c"), chain("a", 2))
    assert tier.touched == []
    engine.step()
    assert tier.touched == chain("a", 2)


def test_close_writes_what_waits_and_closes() -> None:
    tier = HostileTier()
    engine = Engine(64, tier, job_blocks=1)
    engine.run(Request("a"), chain("a", 30))
    assert engine.cascade.close()
    assert tier.closed and len(tier.shelf) == 30


def test_close_leaves_a_hanging_tier_open_and_says_so() -> None:
    tier = HostileTier()
    tier.hangs = True
    engine = Engine(16, tier)
    engine.run(Request("a"), ["a0"])
    assert not engine.cascade.close()
    assert not tier.closed


def test_a_cascade_without_tiers_is_the_pool() -> None:
    engine = Engine(8)
    engine.run(Request("a"), ["a0"])
    engine.step()
    assert not engine.cascade.has_pending_work()
    assert engine.serve(Request("b"), ["a0", "a1"]) == 1
    assert engine.cascade.close()


def test_a_single_slot_is_left_to_stores() -> None:
    tier = HostileTier()
    tier.put("a0")
    engine = Engine(1, tier)
    assert engine.serve(Request("a"), ["a0"]) == 0
    assert engine.store(Request("a"), ["a0"]) == ["a0"]


def test_where_no_slot_can_be_spared_nothing_waits_to_go_down() -> None:
    engine = Engine(1, HostileTier())
    engine.run(Request("a"), ["a0"])
    engine.step(3)
    assert not engine.cascade.has_pending_work(), "an idle engine would spin"
    assert engine.cascade.stats().tiers["hostile"].counters["dropped_backpressure"] == 1


def test_config_says_all_that_is_wrong() -> None:
    with pytest.raises(ConfigError) as error:
        CascadeConfig(admission="sometimes", hang_seconds=0, job_blocks=1.5, load_share="much")  # type: ignore[arg-type]
    assert len(error.value.problems) == 4
    assert "choose one of: everything, second-use, write-back" in str(error.value)
    with pytest.raises(ConfigError, match="leave room for running stores"):
        CascadeConfig(promote_share=0.9, demote_share=0.2)
    with pytest.raises(ConfigError, match="'x' is the name of more than one"):
        Engine(8, HostileTier("x"), HostileTier("x"))
