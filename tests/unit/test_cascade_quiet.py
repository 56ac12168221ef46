"""The cascade's promises. Lookups that change nothing, counters, closing, and cascades with next to nothing to move."""

import pytest

from hostile import Engine, HostileTier, chain
from kvloft.errors import ConfigError
from kvloft.pool import Lookup
from kvloft.request import Request
from kvloft.transfer.limits import CascadeConfig


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
