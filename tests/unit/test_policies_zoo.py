"""Policies against naive models of their papers, one block a request; HDI where there is something to learn."""

import random
from collections import Counter

import pytest

from kvloft import BlockPool, Request
from kvloft.sim.bound import Future, optimum
from kvloft.sim.replay import Replay
from kvloft.traces.columns import hold
from kvloft.traces.synth import Workload, synthesize

CAPACITY = 10


class FIFO:
    def __init__(self) -> None:
        self.queue: list[int] = []

    def ask(self, key: int) -> bool:
        if key in self.queue:
            return True
        self.queue = [*self.queue, key][-CAPACITY:]
        return False


class LRU(FIFO):
    def ask(self, key: int) -> bool:
        hit = key in self.queue
        self.queue = [*(other for other in self.queue if other != key), key][-CAPACITY:]
        return hit


class SIEVE:
    """One list, oldest first, and a hand."""

    def __init__(self) -> None:
        self.queue: list[list] = []
        self.hand = 0

    def ask(self, key: int) -> bool:
        for entry in self.queue:
            if entry[0] == key:
                entry[1] = True
                return True
        if len(self.queue) == CAPACITY:
            while True:
                self.hand %= len(self.queue)
                if not self.queue[self.hand][1]:
                    break
                self.queue[self.hand][1] = False
                self.hand += 1
            del self.queue[self.hand]
            if self.hand == len(self.queue):
                self.hand = 0
        self.queue.append([key, False])
        return False


class SLRU:
    def __init__(self) -> None:
        self.probation: list[int] = []
        self.protected: list[int] = []

    def ask(self, key: int) -> bool:
        if key in self.protected:
            self.protected.remove(key)
            self.protected.append(key)
            return True
        if key in self.probation:
            self.probation.remove(key)
            self.protected.append(key)
            if len(self.protected) > 8:
                self.probation.append(self.protected.pop(0))
            return True
        if len(self.probation) + len(self.protected) == CAPACITY:
            self.probation.pop(0)
        self.probation.append(key)
        return False


class TwoQ:
    def __init__(self) -> None:
        self.newcomers: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []

    def ask(self, key: int) -> bool:
        if key in self.main:
            self.main.remove(key)
            self.main.append(key)
            return True
        if key in self.newcomers:
            return True
        to_main = key in self.ghosts
        if len(self.newcomers) + len(self.main) == CAPACITY:
            if len(self.newcomers) > 2 or not self.main:
                self.ghosts.append(self.newcomers.pop(0))
            else:
                self.main.pop(0)
        if to_main:
            self.ghosts.remove(key)
        self.ghosts = self.ghosts[-5:]
        (self.main if to_main else self.newcomers).append(key)
        return False


class S3FIFO:
    def __init__(self) -> None:
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.reads: Counter[int] = Counter()

    def ask(self, key: int) -> bool:
        if key in self.small or key in self.main:
            self.reads[key] = min(3, self.reads[key] + 1)
            return True
        full = len(self.small) + len(self.main) == CAPACITY
        to_main = key in self.ghosts
        while full:
            if self.small and (len(self.small) >= 1 or not self.main):
                old = self.small.pop(0)
                if self.reads.pop(old, 0) >= 2:
                    self.main.append(old)
                else:
                    self.ghosts.append(old)
                    full = False
            else:
                old = self.main.pop(0)
                if self.reads[old]:
                    self.reads[old] -= 1
                    self.main.append(old)
                else:
                    full = False
        if to_main:
            self.ghosts.remove(key)
        self.ghosts = self.ghosts[-9:]
        (self.main if to_main else self.small).append(key)
        return False


class LRU2:
    """Keeps all history."""

    def __init__(self) -> None:
        self.cached: set[int] = set()
        self.uses: dict[int, list[int]] = {}
        self.now = 0

    def ask(self, key: int) -> bool:
        self.now += 1
        hit = key in self.cached
        if not hit and len(self.cached) == CAPACITY:
            self.cached.remove(
                min(self.cached, key=lambda k: ((self.uses[k][-2] if len(self.uses[k]) > 1 else 0), self.uses[k][-1]))
            )
        self.cached.add(key)
        self.uses.setdefault(key, []).append(self.now)
        return hit


class LFU:
    """With dynamic aging."""

    def __init__(self) -> None:
        self.rank: dict[int, tuple[int, int]] = {}
        self.uses: Counter[int] = Counter()
        self.age = self.now = 0

    def ask(self, key: int) -> bool:
        self.now += 1
        hit = key in self.rank
        if not hit and len(self.rank) == CAPACITY:
            old = min(self.rank, key=self.rank.__getitem__)
            self.age = self.rank.pop(old)[0]
            del self.uses[old]
        self.uses[key] += 1
        self.rank[key] = (self.age + self.uses[key], self.now)
        return hit


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        ("fifo", FIFO),
        ("lru", LRU),
        ("sieve", SIEVE),
        ("slru", SLRU),
        ("2q", TwoQ),
        ("s3-fifo", S3FIFO),
        ("lru-2", LRU2),
        ("lfu", LFU),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_hits_are_those_of_the_paper(policy: str, model: type, seed: int) -> None:
    """Zipf-like keys, one block a request: the same hits, request by request."""
    draw = random.Random(seed)
    pool, reference = BlockPool(CAPACITY, policy), model()
    for number in range(1200):
        key = int(draw.paretovariate(0.6)) % 60
        request = Request(number)
        hit = pool.match_prefix([key]) == 1
        assert hit == reference.ask(key), f"request {number} for {key}"
        if hit:
            pool.complete_load(pool.prepare_load([key], request).keys, request)
        pool.complete_store(pool.prepare_store([key], request).keys, request)
        pool.finish(request)


@pytest.mark.parametrize("kind", ["chat", "rag", "agents"])
def test_hdi_is_no_worse_than_lru_and_below_the_bound(kind: str) -> None:
    trace = list(synthesize(Workload(requests=700, seed=5, block_tokens=512, mix={kind: 1})))
    unique = len({key for request in trace for key in request.keys})
    future = Future(hold(trace))
    hits: Counter[str] = Counter()
    for share in (0.02, 0.1, 0.3):
        capacity = int(unique * share)
        bound, _ = optimum(future, capacity)
        for policy in ("lru", "hdi"):
            replay = Replay(policy, capacity)
            for request in trace:
                replay.step(request)
            hits[policy] += replay.hits
            assert replay.hits <= sum(bound)
    assert hits["hdi"] >= 0.99 * hits["lru"]


def test_hdi_learns_which_documents_are_read_again() -> None:
    """Every other document is read five times, with many others in between; LRU has forgotten it each time."""
    requests = []
    for round_ in range(800):
        requests.append([("kept", round_ % 10, place) for place in range(4)])
        requests.append([("once", round_, place) for place in range(4)])
        requests.append([("once more", round_, place) for place in range(4)])
    hits = {}
    for policy in ("lru", "hdi"):
        pool, hits[policy] = BlockPool(60, policy), 0
        for number, keys in enumerate(requests):
            request = Request(number)
            found = keys[: pool.match_prefix(keys)]
            hits[policy] += len(found)
            pool.complete_load(pool.prepare_load(found, request).keys, request)
            pool.complete_store(pool.prepare_store(keys, request).keys, request)
            pool.finish(request)
    assert hits["lru"] == 0
    assert hits["hdi"] > 0.5 * 800 * 4
