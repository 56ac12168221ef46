"""The cascade's promises. What goes down from host memory: admission, backpressure, write-back."""

from hostile import Engine, HostileTier, chain, fill
from kvloft.pool import Lookup
from kvloft.request import Request
from kvloft.tiers.memory import MemoryTier


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
