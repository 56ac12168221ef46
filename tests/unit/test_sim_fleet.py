"""A simulated fleet: what one engine stores another finds, and numbers that add up."""

from collections.abc import Iterator

import pytest

from kvloft.errors import ConfigError
from kvloft.sim.fleet import Routing, simulate_fleet
from kvloft.sim.latency import Machine, Simulation
from kvloft.sim.tier import TierModel
from kvloft.traces.event import TraceRequest

MACHINE = Machine(block_tokens=16, block_bytes=1 << 20, prefill_tokens_per_second=1000.0)
STORE = TierModel("store", 1 << 30)


def turns(sessions: int, turns: int, gap: float = 1.0) -> Iterator[TraceRequest]:
    """Conversations side by side; each turn adds two blocks to what was said."""
    for turn in range(turns):
        for session in range(sessions):
            keys = [session * 1000 + block for block in range(2 * turn + 2)]
            yield TraceRequest(keys, (turn * sessions + session) * gap, 16 * len(keys), 0, f"s{session}")


def test_one_engine_is_the_simulation_of_one() -> None:
    alone = Simulation(MACHINE, "lru", 64).run(turns(3, 5))
    fleet = simulate_fleet(turns(3, 5), MACHINE, 64, 1, policy="lru")
    assert (fleet.hit_ratio, fleet.ttft_mean, fleet.prefill_seconds) == (
        alone.hit_ratio,
        alone.ttft_mean,
        alone.prefill_seconds,
    )
    assert fleet.saved_tokens == pytest.approx(alone.saved_tokens / alone.prompt_tokens)


def test_sticky_sessions_find_their_past_and_round_robin_loses_it() -> None:
    sticky = simulate_fleet(turns(3, 6), MACHINE, 64, 4, Routing.STICKY)
    lost = simulate_fleet(turns(3, 6), MACHINE, 64, 4, Routing.ROUND_ROBIN)
    # Of 2, 4, ... 12 blocks all but the last two are known.
    assert sticky.hit_ratio == pytest.approx(30 / 42)
    assert lost.hit_ratio < 0.4 * sticky.hit_ratio


def test_with_a_store_round_robin_finds_what_sticky_finds() -> None:
    shared = simulate_fleet(turns(3, 6), MACHINE, 64, 4, Routing.ROUND_ROBIN, STORE)
    assert shared.hit_ratio == pytest.approx(30 / 42)
    assert shared.hit_ratios["store"] > 0.2
    assert shared.store_bytes_written == 3 * 12 << 20, "each block is written once, whoever made it"
    assert shared.store_bytes_read > 0
    assert shared.busiest == pytest.approx(1.0, abs=0.15)


def test_the_bandwidth_of_the_store_is_one_for_all() -> None:
    """Four engines want the same blocks at the same time from a store that reads 10 blocks a second."""

    def trace() -> Iterator[TraceRequest]:
        yield TraceRequest(list(range(8)), 0.0, 128)
        for at in range(4):
            yield TraceRequest(list(range(8)), 5.0 + at / 1000, 128)

    slow = TierModel("store", 1 << 30, 0.0, 10 << 20, 1 << 30)
    results = simulate_fleet(trace(), MACHINE, 64, 4, store=slow)
    # The engine that made them has them; three others wait for 0.8 s each, one after the other.
    assert results.hit_ratios["store"] * 40 == 24
    assert results.ttft_percentiles["99"] > 2.2


def test_what_cannot_be_simulated_is_said() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        simulate_fleet(turns(1, 1), MACHINE, 64, 0)
    with pytest.raises(ConfigError, match="times"):
        simulate_fleet([TraceRequest([1])], MACHINE, 64, 2)
