"""Replay with time: nothing is lost or left behind, and without haste it is the plain replay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft.errors import ConfigError
from kvloft.policies import policy_names
from kvloft.sim.latency import Machine, Simulation
from kvloft.sim.replay import Replay
from kvloft.sim.tier import TierModel
from kvloft.traces.event import TraceRequest


def machine(**changes):
    fixed = {"block_tokens": 10, "block_bytes": 1000, "prefill_tokens_per_second": 100.0, "decode_tokens_per_second": 10.0}
    return Machine(**{**fixed, "link_bytes_per_second": 1e4, **changes})


@st.composite
def chains(draw, gap=5.0):
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, 15)))]

    def path(node):
        return [*path(parents[node]), node] if node >= 0 else []

    now, requests = 0.0, []
    for end in draw(st.lists(st.integers(0, len(parents) - 1), min_size=1, max_size=25)):
        now += draw(st.floats(0, gap))
        requests.append(TraceRequest(path(end), now, output_tokens=draw(st.integers(0, 40))))
    return requests


@given(chains(), st.integers(1, 12), st.sampled_from(policy_names()))
@settings(max_examples=100, deadline=None)
def test_one_at_a_time_it_is_the_plain_replay(requests, capacity, policy):
    plain = Replay(policy, capacity)
    hits = [plain.step(request) for request in requests]
    outcomes = []
    quick = machine(concurrency=1, link_bytes_per_second=1e9)
    simulation = Simulation(quick, policy, capacity, done=outcomes.append)
    result = simulation.run(TraceRequest(request.keys, output_tokens=1) for request in requests)
    assert [sum(outcome.hits.values()) for outcome in outcomes] == hits
    assert result.refused_stores == plain.pool.counters.refused.total()
    assert result.evicted_blocks == plain.evicted


@given(
    chains(),
    st.integers(1, 12),
    st.integers(0, 12),
    st.integers(1, 4),
    st.sampled_from(policy_names()),
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0.0, 0.5, 20.0]), st.sampled_from([1e2, 1e4])), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_and_nothing_is_left_behind(requests, capacity, gpu_blocks, concurrency, policy, media):
    tiers = tuple(
        TierModel(f"tier-{at}", 1000 * blocks, latency, rate, rate) for at, (blocks, latency, rate) in enumerate(media)
    )
    outcomes = []
    simulation = Simulation(
        machine(gpu_blocks=gpu_blocks, concurrency=concurrency, tiers=tiers), policy, capacity, done=outcomes.append
    )
    result = simulation.run(requests)
    assert result.requests == len(outcomes) == len(requests)
    assert result.computed_tokens + result.saved_tokens == result.prompt_tokens
    assert sum(result.hit_blocks.values()) <= result.total_blocks == sum(len(request.keys) for request in requests)
    below_gpu = sum(hits for place, hits in result.hit_blocks.items() if place != "gpu")
    assert result.bytes_loaded == 1000 * below_gpu
    for outcome in outcomes:
        assert outcome.arrival <= outcome.started <= outcome.first_token <= outcome.ended
        assert outcome.computed_tokens >= 1
    assert max(
        sum(other.started <= outcome.started < other.ended for other in outcomes) for outcome in outcomes
    ) <= concurrency  # fmt: skip
    for pool in (simulation.pool, simulation.gpu):
        if pool is not None:
            stats = pool.stats()
            assert stats.free + stats.writing + stats.ready == stats.capacity
            assert stats.pinned == 0
    assert simulation.gpu is None or simulation.gpu.stats().writing == 0
    for tier in simulation.tiers:
        assert tier.stats().bytes <= tier.capacity_bytes


def test_a_worked_example():
    """Ten tokens a block, 100 tokens a second: a block takes 0.1 s to compute, and 0.1 s to load."""
    outcomes = []
    requests = [
        TraceRequest([1, 2, 3], 0.0, output_tokens=10),  # computes 30 tokens, its last block is stored by 0.6
        TraceRequest([1, 2, 4], 5.0, output_tokens=0),  # loads two blocks by 5.2, computes ten tokens
        TraceRequest([9], 5.0, output_tokens=0),  # need not wait for the load: computes until 5.1
    ]
    result = Simulation(machine(), "lru", 10, done=outcomes.append).run(requests)
    assert [(round(outcome.ttft, 6), outcome.hits.get("host", 0)) for outcome in outcomes] == [(0.3, 0), (0.1, 0), (0.3, 2)]
    assert (result.prompt_tokens, result.computed_tokens, result.saved_tokens) == (70, 50, 20)
    assert (result.bytes_loaded, result.bytes_stored) == (2000, 5000)
    assert result.prefill_seconds == pytest.approx(0.5)
    assert result.seconds == pytest.approx(5.4)


def test_what_host_memory_lost_comes_back_from_a_tier():
    disk = TierModel("disk", 100_000, 0.0, 1e9, 1e9)
    requests = [TraceRequest([first, first + 1], 10.0 * at) for at, first in enumerate([0, 10, 20, 0, 10, 20])]
    without = Simulation(machine(), "lru", 4).run(requests)
    assert without.hit_blocks == {}
    result = Simulation(machine(tiers=(disk,)), "lru", 4).run(requests)
    assert result.hit_blocks["disk"] >= 4
    assert result.deferred_requests >= 2
    assert result.tier_bytes_read["disk"] >= 4000
    assert result.tier_bytes_written["disk"] == 6000


def test_blocks_on_the_gpu_are_not_loaded():
    requests = [TraceRequest([1, 2], 0.0), TraceRequest([1, 2, 3], 10.0)]
    result = Simulation(machine(gpu_blocks=3), "lru", 10).run(requests)
    assert result.hit_blocks == {"gpu": 2}
    assert result.bytes_loaded == 0


def test_a_full_gpu_makes_requests_wait_and_one_too_large_for_it_runs_alone():
    outcomes = []
    requests = [
        TraceRequest([1, 2], 0.0, output_tokens=10),
        TraceRequest([3, 4], 0.1, output_tokens=10),
        TraceRequest([5, 6, 7, 8], 0.2, output_tokens=10),
    ]
    Simulation(machine(gpu_blocks=3), "lru", 10, done=outcomes.append).run(requests)
    assert [outcome.blocks for outcome in outcomes] == [2, 2, 4]
    assert outcomes[1].started == pytest.approx(outcomes[0].ended)
    assert outcomes[2].started == pytest.approx(outcomes[1].ended)


def test_all_that_is_wrong_with_a_machine_is_named():
    with pytest.raises(ConfigError) as error:
        Simulation(machine(concurrency=0, gpu_blocks=-1, link_bytes_per_second=0.0), "lru", 1)
    assert len(error.value.problems) == 3


def test_hints_go_by_simulated_time():
    asked = [
        TraceRequest([1, 2], 0.0, 20),
        TraceRequest([3, 4], 100.0, 20, ttl=50.0),
        TraceRequest([5, 6], 200.0, 20),
        TraceRequest([1, 2], 300.0, 20),
        TraceRequest([3, 4], 400.0, 20),
    ]
    outcomes = []
    Simulation(machine(), "lru", 4, done=outcomes.append).run(asked)
    assert [outcome.hits.get("host", 0) for outcome in outcomes] == [0, 0, 0, 2, 0]
