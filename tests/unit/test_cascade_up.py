"""The cascade's promises. What comes up: pending, room, deadlines, aborts and resets."""

import pytest

from hostile import BLOCK_BYTES, Engine, HostileTier, chain, fill
from kvloft.pool import Lookup
from kvloft.request import Request


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
