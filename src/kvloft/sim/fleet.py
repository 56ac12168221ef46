"""Several engines behind a router, with or without a store that they share.

Each engine is a `Simulation` with its own GPU, host memory and local tiers; the store is one for all, blocks and bandwidth.
Engines take turns by time, so whatever one has stored by then another finds.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import count
from typing import Any

import msgspec
import numpy as np
import xxhash

from kvloft.errors import ConfigError
from kvloft.sim.latency import Machine, Outcome, Simulation, quiet
from kvloft.sim.tier import Medium, TierModel
from kvloft.traces.event import TraceRequest


class Routing(StrEnum):
    """Which engine a request goes to."""

    ROUND_ROBIN = "round-robin"
    """Each in turn."""
    STICKY = "sticky"
    """By its session if it names one, else by its second block: the first may be a system prompt that all have in common."""


class FleetResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet came to. Times in seconds, ratios of all blocks or tokens of the trace."""

    engines: int
    routing: Routing
    shared: bool
    requests: int
    hit_ratio: float
    hit_ratios: dict[str, float]
    """By where blocks were: "gpu", "host", or a tier's name."""
    saved_tokens: float
    prefill_seconds: float
    """Of all GPUs together."""
    ttft_mean: float
    ttft_percentiles: dict[str, float]
    busiest: float
    """Requests of the engine that got the most, over the average."""
    store_bytes_read: int
    store_bytes_written: int
    seconds: float


def simulate_fleet(
    requests: Iterable[TraceRequest],
    machine: Machine,
    capacity: int,
    engines: int,
    routing: Routing = Routing.ROUND_ROBIN,
    store: TierModel | None = None,
    policy: str = "default",
    **settings: Any,
) -> FleetResult:
    """Serve one trace with several engines.

    Args:
        requests: in order of arrival, with times.
        machine: one engine, with the tiers that are its own.
        capacity: blocks of host memory of each engine.
        engines: how many.
        routing: which engine gets which request.
        store: shared by all, asked after each engine's own tiers; None for none.
        policy: of the host pools.
        settings: further ones of `Simulation`.

    Raises:
        ConfigError: there is no engine, or a request has no time.
    """
    if engines < 1:
        raise ConfigError(f"engines: {engines!r} is none; give at least 1")
    media = {} if store is None else {store.name: Medium(store)}
    if store is not None:
        machine = msgspec.structs.replace(machine, tiers=(*machine.tiers, store))
    outcomes: list[Outcome] = []
    fleet = [Simulation(machine, policy, capacity, done=outcomes.append, media=media, **settings) for _ in range(engines)]
    route = _router(routing, engines)
    loads: Counter[int] = Counter()
    with quiet():
        for asked in requests:
            if asked.time is None:
                raise ConfigError("a fleet needs a trace with times; this one has requests without")
            _advance(fleet, asked.time)
            chosen = route(asked)
            loads[chosen] += 1
            fleet[chosen].offer(asked)
        _advance(fleet, None)
    return _result(fleet, outcomes, loads, routing, store)


def _advance(fleet: Sequence[Simulation], until: float | None) -> None:
    """Let all engines come to a time, or to their ends, whoever is earliest first."""
    due = [(time, at) for at, engine in enumerate(fleet) if (time := engine.next_event) is not None]
    heapq.heapify(due)
    while due and (until is None or due[0][0] < until):
        _, at = heapq.heappop(due)
        fleet[at].advance()
        if (time := fleet[at].next_event) is not None:
            heapq.heappush(due, (time, at))


def _router(routing: Routing, engines: int) -> Callable[[TraceRequest], int]:
    if routing is Routing.ROUND_ROBIN:
        turns = count()
        return lambda asked: next(turns) % engines

    def stick(asked: TraceRequest) -> int:
        mark = asked.session or asked.keys[min(1, len(asked.keys) - 1)]
        return xxhash.xxh3_64_intdigest(str(mark).encode()) % engines

    return stick


def _result(
    fleet: Sequence[Simulation],
    outcomes: Sequence[Outcome],
    loads: Counter[int],
    routing: Routing,
    store: TierModel | None,
) -> FleetResult:
    blocks = sum(outcome.blocks for outcome in outcomes)
    tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    hits: Counter[str] = Counter()
    for outcome in outcomes:
        hits.update(outcome.hits)
    ttfts = np.array([outcome.ttft for outcome in outcomes] or [0.0])
    results = [engine.result() for engine in fleet]
    name = "" if store is None else store.name
    return FleetResult(
        engines=len(fleet),
        routing=routing,
        shared=store is not None,
        requests=len(outcomes),
        hit_ratio=hits.total() / max(1, blocks),
        hit_ratios={place: found / max(1, blocks) for place, found in hits.items() if found},
        saved_tokens=1 - sum(outcome.computed_tokens for outcome in outcomes) / max(1, tokens),
        prefill_seconds=sum(result.prefill_seconds for result in results),
        ttft_mean=float(ttfts.mean()),
        ttft_percentiles={str(at): float(np.percentile(ttfts, at)) for at in (50, 90, 99)},
        busiest=max(loads.values(), default=0) * len(fleet) / max(1, loads.total()),
        store_bytes_read=sum(result.tier_bytes_read.get(name, 0) for result in results),
        store_bytes_written=sum(result.tier_bytes_written.get(name, 0) for result in results),
        seconds=max((result.seconds for result in results), default=0.0),
    )
