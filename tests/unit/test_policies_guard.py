"""What HDI promises beside LRU: it knows what LRU would have, and falls only so far behind it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from kvloft.policies.hdi import HDI
from kvloft.policies.shadow import Rival
from kvloft.sim.replay import Replay
from kvloft.traces.event import TraceRequest
from kvloft.traces.synth import Workload, synthesize

Trace = list[TraceRequest]
KEPT = 0.0025
"""Of the blocks asked for, so many hits fewer than LRU's at most, ..."""


class Chains:
    """Requests, each of which goes on from blocks that there were before, or begins anew."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.requests: list[Sequence[int]] = []
        self._free = 0

    def new(self, blocks: int) -> list[int]:
        self._free += blocks
        return [*range(self._free - blocks, self._free)]

    def trace(self) -> Trace:
        return [TraceRequest(list(keys)) for keys in self.requests]


def conversations(seed: int, requests: int = 600) -> Trace:
    """Short and long ones that go on from their end, from their middle, or not at all."""
    chains, rng = Chains(seed), np.random.default_rng(seed)
    for _ in range(requests):
        known: Sequence[int] = ()
        if chains.requests and rng.random() < 0.7:
            known = chains.requests[-1 - int(rng.integers(min(len(chains.requests), 1 + rng.integers(60))))]
            known = known[: len(known) - int(rng.integers(3)) * int(rng.integers(len(known)))]
        chains.requests.append([*known[:20], *chains.new(int(rng.integers(1, 9)))])
    return chains.trace()


def turncoats(seed: int, requests: int = 1800, period: int = 450) -> Trace:
    """What HDI learns of a class is wrong soon: tails are used again at once, then never, then those of long ago."""
    chains, rng = Chains(seed), np.random.default_rng(seed)
    root = chains.new(2)
    documents = [chains.new(8) for _ in range(400)]
    for number in range(requests):
        phase, old = number // period % 3, chains.requests
        if phase == 0 and old and rng.random() < 0.5:
            chains.requests.append([*old[-1 - int(rng.integers(min(100, len(old))))][:40], *chains.new(8)])
        elif phase == 1 and rng.random() < 0.5:
            chains.requests.append([*root, *documents[number * 7 % 400]])
        elif phase == 2 and len(old) > 300 and rng.random() < 0.6:
            chains.requests.append(old[-300 + int(rng.integers(20))])
        else:
            chains.requests.append([*root, *chains.new(8)])
    return chains.trace()


def loop(seed: int) -> Trace:
    """The same documents in turn, in which the worth of keeping any is the same, and then a time in which it is LRU's."""
    chains, rng = Chains(seed), np.random.default_rng(seed)
    documents = [chains.new(10) for _ in range(60)]
    for number in range(1200):
        if number // 300 % 2:
            chains.requests.append(chains.requests[-40] if rng.random() < 0.5 else chains.new(10))
        else:
            chains.requests.append(documents[number % 60])
    return chains.trace()


def made(mix: dict[str, float], seed: int) -> Trace:
    return list(synthesize(Workload(requests=400, seed=seed, block_tokens=1024, mix=mix)))


def renamed(trace: Trace, by: int) -> Trace:
    return [TraceRequest([key + by for key in request.keys]) for request in trace]


WORKLOADS: dict[str, Callable[[], Trace]] = {
    "conversations": lambda: conversations(1, 1500),
    "turncoats": lambda: turncoats(1),
    "loop": lambda: loop(1),
    "chats, then agents": lambda: made({"chat": 1}, 7) + renamed(made({"agents": 1}, 7), 1 << 30),
    "questions, then agents": lambda: made({"rag": 1}, 8) + renamed(made({"agents": 1}, 8), 1 << 30),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_falls_only_so_far_behind_lru(name: str) -> None:
    trace = WORKLOADS[name]()
    unique = len({key for request in trace for key in request.keys})
    asked = sum(len(request.keys) for request in trace)
    for share in (0.1, 0.5):
        lru, hdi = (Replay(policy, int(share * unique)) for policy in ("lru", "hdi"))
        for request in trace:
            lru.step(request)
            hdi.step(request)
        assert hdi.hits >= lru.hits - KEPT * asked, f"{100 * (hdi.hits - lru.hits) / asked:.2f} points at {share:.0%}"


def test_without_the_rival_these_workloads_mislead_it() -> None:
    """Else the promise above would prove nothing."""

    class Alone(HDI):
        RIVAL = type("Unrivalled", (Rival,), {"affords": lambda *_: True})

    behind = 0
    for name in ("turncoats", "chats, then agents"):
        trace = WORKLOADS[name]()
        capacity = int(0.2 * len({key for request in trace for key in request.keys}))
        lru, alone = Replay("lru", capacity), Replay(Alone, capacity)
        for request in trace:
            lru.step(request)
            alone.step(request)
        behind += alone.hits < lru.hits - KEPT * lru.total
    assert behind


class Watched(Rival):
    """Remembers what it was told of LRU."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.its = 0

    def count(self, ours: int, its: int, asked: int) -> None:
        super().count(ours, its, asked)
        self.its = its


class WatchedHDI(HDI):
    RIVAL = Watched
    PERIOD = 32
    DECLINE = 1.5
    """It learns and declines often."""


def beside(trace: Trace, capacity: int, rival: type[Rival] = Watched) -> Iterator[tuple[Replay, Replay, int]]:
    """LRU and HDI side by side; LRU's hits of each request."""
    lru, hdi = Replay("lru", capacity), Replay(type("HDIBeside", (WatchedHDI,), {"RIVAL": rival}), capacity)
    for request in trace:
        hits = lru.step(request)
        hdi.step(request)
        yield lru, hdi, hits


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reckless", [False, True])
def test_the_shadow_is_lru_and_knows_how_far_we_are_apart(seed: int, reckless: bool) -> None:
    """Hit by hit and block by block, whether we stay close to it or do as we like."""
    rival = type("Reckless", (Watched,), {"affords": lambda *_: True}) if reckless else Watched
    apart = 0
    for lru, hdi, hits in beside(conversations(seed), 60 + 40 * seed, rival):
        policy = hdi.pool.policy
        assert isinstance(policy, WatchedHDI)
        assert policy._rival.its == hits
        missing = {*lru.pool._index} - {*hdi.pool._index}
        assert policy._rival.shadow.apart == len(missing)
        apart = max(apart, len(missing))
    assert apart > 10 if reckless else apart


def test_without_credit_the_caches_become_the_same() -> None:
    """It evicts only what LRU has lost; so what it has otherwise comes to be what LRU has."""

    class Poor(Watched):
        left = 300

        def affords(self, lacking: int, more: int) -> bool:
            return self.left > 0

        def count(self, ours: int, its: int, asked: int) -> None:
            super().count(ours, its, asked)
            self.left -= 1

    apart = [len({*lru.pool._index} - {*hdi.pool._index}) for lru, hdi, _ in beside(conversations(1), 100, Poor)]
    assert max(apart[:300]) > 10
    assert apart[310:] == sorted(apart[310:], reverse=True)
    assert apart[-1] == 0
