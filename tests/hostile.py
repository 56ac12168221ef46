"""For tests of the cascade: an engine in few words, and a tier that does what real ones do on a bad day, on command."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvloft.pool import BlockPool, LoadPlan, Lookup
from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, JobResult, Presence, Status, Tier, TierStats
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import CascadeConfig

BLOCK_BYTES = 16


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


class Host:
    """An arena of tiny slots."""

    def __init__(self, slots: int) -> None:
        self.bytes = np.zeros((slots, BLOCK_BYTES), dtype=np.uint8)

    def view(self, slot: int) -> Buffer:
        return memoryview(self.bytes[slot])

    def write(self, keys: Sequence[Key], slots: Sequence[int]) -> None:
        for key, slot in zip(keys, slots, strict=True):
            self.bytes[slot] = np.frombuffer(content(key), dtype=np.uint8)

    def holds(self, key: Key, slot: int) -> bool:
        return bytes(self.bytes[slot]) == content(key)


def content(key: Key) -> bytes:
    """The only right bytes of a block."""
    return repr(key).encode().ljust(BLOCK_BYTES, b".")[:BLOCK_BYTES]


@dataclass(eq=False)
class Held:
    """A job in the tier's hands."""

    number: int
    store: bool
    keys: Sequence[Key]
    buffers: Sequence[Buffer]
    since: float
    read: list[bytes]
    """What stores found in the buffers at first."""


class HostileTier(Tier):
    """Keeps the contract's letter, but: hangs, fails, is slow, forgets, promises what it has not, scribbles into the buffers
    that it was given until it answers, raises, and answers what nobody asked.

    Args:
        auto: answer everything at each poll, as long as it does not hang; else only what `answer` is called for.
    """

    def __init__(self, name: str = "hostile", auto: bool = True, clock: Clock | None = None, delay: float = 0.0) -> None:
        self.name = name
        self.auto = auto
        self.clock = clock or Clock()
        self.delay = delay
        """Seconds that each block takes, one after the other."""
        self.shelf: dict[Key, bytes] = {}
        self.jobs: list[Held] = []
        self.due: dict[int, float] = {}
        self.hangs = self.fails = self.lies = self.raises = self.unknown = self.refuses = False
        self.loads_asked: list[Key] = []
        self.stores_asked: list[Key] = []
        self.lookups = 0
        self.touched: list[Key] = []
        self.closed = False
        self._free_at = 0.0
        self._answers: list[JobResult] = []

    def put(self, *keys: Key) -> None:
        self.shelf.update((key, content(key)) for key in keys)

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        self._maybe_raise()
        self.lookups += 1
        if self.unknown:
            return [Presence.UNKNOWN] * len(keys)
        return [Presence.HIT if self.lies or key in self.shelf else Presence.MISS for key in keys]

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._maybe_raise()
        self.stores_asked += keys
        self._take(Held(job, True, keys, buffers, self.clock(), [bytes(buffer) for buffer in buffers]))

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._maybe_raise()
        self.loads_asked += keys
        self._take(Held(job, False, keys, buffers, self.clock(), []))

    def poll(self) -> list[JobResult]:
        self._maybe_raise()
        for job in self.jobs:
            if not job.store:
                for buffer in job.buffers:
                    buffer[:] = b"!" * BLOCK_BYTES
        if self.auto and not self.hangs:
            for job in [job for job in self.jobs if self.due[job.number] <= self.clock()]:
                self.answer(job)
        answers, self._answers = self._answers, []
        return answers

    def answer(self, job: Held) -> None:
        self.jobs.remove(job)
        statuses = [self._do(job, at) for at in range(len(job.keys))]
        error = "the medium is gone" if Status.FAILED in statuses else None
        self._answers.append(JobResult(job.number, statuses, self.due[job.number] - job.since, error))

    def answer_unasked(self) -> None:
        self._answers.append(JobResult(10**12, [Status.OK], 0.0))

    def drain(self, timeout: float | None = None) -> bool:
        return not (self.hangs and self.jobs)

    def touch(self, keys: Sequence[Key]) -> None:
        self._maybe_raise()
        self.touched += keys

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.shelf.pop(key, None)

    def stats(self) -> TierStats:
        return TierStats(blocks=len(self.shelf))

    def close(self) -> None:
        assert not self.jobs
        self.closed = True

    def _take(self, job: Held) -> None:
        self._free_at = max(self._free_at, self.clock()) + self.delay * len(job.keys)
        self.due[job.number] = self._free_at
        self.jobs.append(job)

    def _maybe_raise(self) -> None:
        if self.raises:
            raise OSError("the cable is out")

    def _do(self, job: Held, at: int) -> Status:
        key, buffer = job.keys[at], job.buffers[at]
        if self.fails:
            return Status.FAILED
        if job.store:
            assert bytes(buffer) == job.read[at], f"the slot of {key!r} was given away while it was being written down"
            if self.refuses:
                return Status.DROPPED
            self.shelf[key] = bytes(buffer)
            return Status.OK
        if self.shelf.get(key) != content(key):
            self.shelf.pop(key, None)
            return Status.MISS
        buffer[:] = self.shelf[key]
        return Status.OK


class Engine:
    """What an engine does with a pool and a cascade, in as few words as possible."""

    def __init__(self, slots: int, *tiers: Tier, clock: Clock | None = None, policy: str = "lru", **config: Any) -> None:
        self.clock = clock or Clock()
        self.host = Host(slots)
        self.pool = BlockPool(slots, policy)
        self.cascade = Cascade(self.pool, self.host.view, tiers, CascadeConfig(**config), self.clock)

    def store(self, request: Request, keys: Sequence[Key]) -> list[Key] | None:
        """Store in one go; what was written, None if refused."""
        plan = self.pool.prepare_store(keys, request)
        if plan is None:
            return None
        self.cascade.used([key for key in keys if key not in plan.keys and self.pool.lookup(key) is Lookup.HIT])
        self.host.write(plan.keys, plan.slots)
        self.cascade.stored(self.pool.complete_store(plan.keys, request))
        return plan.keys

    def run(self, request: Request, keys: Sequence[Key]) -> None:
        """A whole request that only stores."""
        assert self.store(request, keys) is not None
        self.finish(request)

    def ask(self, request: Request, keys: Sequence[Key], tiers: Sequence[str] | None = None) -> int | None:
        """How many leading blocks may be loaded; None: wait."""
        hits, wait = 0, False
        for key in keys:
            found = self.cascade.lookup(key, request, tiers)
            if found is Lookup.MISS:
                break
            wait |= found is Lookup.PENDING
            hits += 1
        return None if wait else hits

    def begin_load(self, request: Request, keys: Sequence[Key]) -> LoadPlan:
        plan = self.pool.prepare_load(keys, request)
        self.cascade.loading(plan.keys, request)
        for key, slot in zip(plan.keys, plan.slots, strict=True):
            assert self.host.holds(key, slot), f"{key!r} has the bytes of another"
        return plan

    def load(self, request: Request, keys: Sequence[Key]) -> None:
        self.pool.complete_load(self.begin_load(request, keys).keys, request)

    def step(self, n: int = 1, seconds: float = 0.0) -> None:
        for _ in range(n):
            self.clock.tick(seconds)
            self.cascade.step()

    def serve(self, request: Request, keys: Sequence[Key], tiers: Sequence[str] | None = None, seconds: float = 0.01) -> int:
        """Ask until there is an answer, and load what it allows; how many blocks that were."""
        for _ in range(100):
            hits = self.ask(request, keys, tiers)
            if hits is not None:
                self.load(request, keys[:hits])
                return hits
            self.step(seconds=seconds)
        raise AssertionError("still no answer after 100 steps")

    def finish(self, request: Request) -> None:
        self.cascade.finish(request)
        self.pool.finish(request)

    def assert_clean(self) -> None:
        """Nothing is pinned, held, under way or set aside."""
        stats, sizes = self.pool.stats(), self.cascade.stats()
        assert stats.writing == stats.pinned == 0
        assert stats.free + stats.ready == stats.capacity
        assert (sizes.waiting, sizes.wanted, sizes.loading, sizes.held, sizes.set_aside) == (0, 0, 0, 0, 0)
        assert all(link.loading == link.storing == 0 for link in sizes.tiers.values())


def chain(name: str, n: int) -> list[str]:
    return [f"{name}{at}" for at in range(n)]


def fill(engine: Engine, n: int, name: str = "other") -> None:
    """Push everything else out of host memory."""
    for at in range(n):
        engine.run(Request(f"{name}{at}"), [f"{name}-block{at}"])
