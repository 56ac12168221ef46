"""Replay with time: arrivals, a GPU prefix cache, host memory and tiers, transfers, prefill, concurrency.

A discrete-event simulation of one engine. `BlockPool`, policy and `Cascade` are those that serve; only GPU, links and media
are models:

- The GPU's prefix cache is a pool of its own with LRU. Blocks of running requests stay; a request for which there is no room
  waits, and so do those behind it.
- A request's leading run is looked up first on the GPU, then below. While a tier brings blocks up the request is passed
  over, and others start.
- A load from host memory takes its turn on the link to the GPU, then the rest of the prompt takes its turn in prefill, which
  computes one prompt after another at a fixed rate. TTFT is from arrival to the end of prefill.
- After prefill all blocks of the prompt are offered to host memory; those that are new take their turn on the link back.
- Answers are generated at a fixed rate, each on its own; a request counts among the running ones until its end. Blocks of
  answers are not modelled: the next turn's prompt holds them.
"""

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import msgspec
import numpy as np

from kvloft.errors import ConfigError
from kvloft.policies import Policy
from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key, Request
from kvloft.sim.intake import Intake
from kvloft.sim.tier import Channel, Medium, SimulatedTier, TierModel
from kvloft.traces.event import TraceRequest
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import Admission, CascadeConfig

_TICK = 0.25
"""Seconds after which requests that are waiting for a tier are looked at again even if nothing has happened: deadlines."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace is replayed on.

    Args:
        block_tokens: tokens a block.
        block_bytes: bytes a block.
        prefill_tokens_per_second: what the engine computes.
        decode_tokens_per_second: of each answer.
        concurrency: requests that may run at a time.
        gpu_blocks: size of the prefix cache on the GPU; 0 for none.
        link_bytes_per_second: between host memory and GPU, each way.
        tiers: media below host memory, the fastest first.
        admission: which blocks go to them.
    """

    block_tokens: int
    block_bytes: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float = 50.0
    concurrency: int = 64
    gpu_blocks: int = 0
    link_bytes_per_second: float = 25e9
    tiers: tuple[TierModel, ...] = ()
    admission: Admission = Admission.EVERYTHING

    def check(self) -> None:
        """Raises:
        ConfigError: names all that is out of its range.
        """
        names = ("block_tokens", "block_bytes", "prefill_tokens_per_second", "decode_tokens_per_second", "concurrency")
        problems = [
            f"{name}: {getattr(self, name)!r} is not greater than 0"
            for name in (*names, "link_bytes_per_second")
            if not getattr(self, name) > 0
        ]
        if self.gpu_blocks < 0:
            problems.append(f"gpu_blocks: {self.gpu_blocks!r} is negative")
        if problems:
            raise ConfigError(problems)


class Outcome(msgspec.Struct, gc=False):
    """What became of one request. Times in seconds, lengths in tokens and blocks."""

    arrival: float
    started: float
    first_token: float
    ended: float
    blocks: int
    prompt_tokens: int
    computed_tokens: int
    hits: dict[str, int]
    """Blocks it did not compute, by where they were: "gpu", "host", or the name of a tier."""

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival


class TimedSlice(msgspec.Struct, frozen=True):
    """The requests that arrived in one part of the time."""

    start: float
    """Seconds since the trace began, as it was replayed."""
    requests: int = 0
    blocks: int = 0
    hits: int = 0
    """Blocks not computed, wherever they were."""
    prompt_tokens: int = 0
    computed_tokens: int = 0
    ttft_mean: float = 0.0


class TimedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay with time came to."""

    trace: str = ""
    policy: str
    capacity_blocks: int
    capacity_fraction: float = 0.0
    """Share of the trace's unique blocks."""
    requests: int
    seconds: float
    """From the first arrival to the last end."""
    total_blocks: int
    hit_blocks: dict[str, int]
    """By where they were: "gpu", "host", or the name of a tier."""
    hit_ratio: float
    """Of all blocks, wherever they were."""
    prompt_tokens: int
    computed_tokens: int
    saved_tokens: int
    prefill_seconds: float
    """Time that the GPU spent on prefill."""
    ttft_mean: float
    ttft_percentiles: dict[str, float]
    """Seconds, by percentile: "50", "90", "99"."""
    bytes_loaded: int
    """From host memory to the GPU."""
    bytes_stored: int
    """From the GPU to host memory."""
    tier_bytes_read: dict[str, int]
    tier_bytes_written: dict[str, int]
    refused_stores: int
    evicted_blocks: int
    deferred_requests: int
    """Requests that waited for a tier."""
    tiers: dict[str, dict[str, int]]
    """What became of blocks on their way to and from each tier, see `LinkStats.counters`."""
    slices: list[TimedSlice] = []
    """By arrival, if that was asked for."""


@contextmanager
def quiet() -> Iterator[None]:
    """The cascade's log is silent meanwhile: what it would warn of are simulated media."""
    log = logging.getLogger("kvloft.transfer")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


class _Running(msgspec.Struct):
    asked: TraceRequest
    request: Request
    arrival: float
    deferred: bool = False
    started: float = 0.0
    prefill_ends: float = 0.0
    computed: int = 0
    prompt: int = 0
    hits: dict[str, int] = {}
    loads: Sequence[Key] = ()
    gpu_held: Sequence[Key] = ()
    gpu_new: Sequence[Key] = ()


class Simulation:
    """One engine under one trace. `run` it once.

    Args:
        machine: what it runs on.
        policy: the host pool's.
        capacity: the host pool's, in blocks; 0 for none, and then tiers have no use.
        cascade: bounds and deadlines; block size, prefill rate and admission are the machine's.
        done: hears of each request when it ends.
        media: what tiers of these names share with those of other engines.
        intake: what host memory takes in; everything, if not given.
    """

    def __init__(
        self,
        machine: Machine,
        policy: str | type[Policy] | Policy,
        capacity: int,
        cascade: Callable[..., CascadeConfig] = CascadeConfig,
        done: Callable[[Outcome], None] | None = None,
        media: Mapping[str, Medium] | None = None,
        intake: Intake | None = None,
    ) -> None:
        machine.check()
        shared = media or {}
        self.machine = machine
        self.now = 0.0
        self.capacity = capacity
        self.pool = (intake or Intake()).pool(capacity or 1, policy, self._clock)
        self.gpu = BlockPool(machine.gpu_blocks, "lru") if machine.gpu_blocks else None
        self.tiers = [
            SimulatedTier(model, machine.block_bytes, self._clock, shared.get(model.name)) for model in machine.tiers
        ]
        config = cascade(
            block_tokens=machine.block_tokens,
            prefill_tokens_per_second=machine.prefill_tokens_per_second,
            admission=machine.admission,
        )
        self.cascade = Cascade(self.pool, lambda _slot: memoryview(b""), self.tiers, config, self._clock)
        self._up = Channel(machine.link_bytes_per_second)
        self._down = Channel(machine.link_bytes_per_second)
        self._prefill_free = 0.0
        self._prefill_busy = 0.0
        self._waiting: deque[_Running] = deque()
        self._running = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._tick_at: float | None = None
        self._arrivals: Iterator[TraceRequest] = iter(())
        self._closed_loop = False
        self._numbers = count()
        self._done = done
        self._deferred = 0
        self._evicted = 0
        self._hits: Counter[str] = Counter()
        self._tokens = self._computed = self._blocks = 0
        self._ttfts: list[float] = []
        self._first: float | None = None

    def run(self, requests: Iterable[TraceRequest]) -> TimedResult:
        """Replay a trace to its end. A request without a time arrives when the one before it has ended.

        What the cascade would log is about simulated media and stays unsaid; the result counts it.
        """
        with quiet():
            self._arrivals = iter(requests)
            self._next_arrival()
            while self._events:
                self.advance()
            return self.result()

    # Events.

    @property
    def next_event(self) -> float | None:
        """When something happens next; None once all is done."""
        return self._events[0][0] if self._events else None

    def offer(self, asked: TraceRequest) -> None:
        """A request that arrives at its time, or now if that has passed, besides those that `run` was given."""
        self._at(asked.time or 0.0, lambda: self._arrive(asked))

    def advance(self) -> None:
        """Let all that happens next at one time happen."""
        self.now, _, happen = heapq.heappop(self._events)
        happen()
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        self._step()

    def _clock(self) -> float:
        return self.now

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), happen))

    def _next_arrival(self) -> None:
        asked = next(self._arrivals, None)
        if asked is None:
            return
        self._closed_loop = asked.time is None
        time = self.now if asked.time is None else asked.time
        self._at(time, lambda: self._arrive(asked))

    def _arrive(self, asked: TraceRequest) -> None:
        if self._first is None:
            self._first = self.now
        self._waiting.append(_Running(asked, asked.request(next(self._numbers)), self.now))
        if not self._closed_loop:
            self._next_arrival()

    def _step(self) -> None:
        """One step of the engine: the cascade moves on, and whoever can start does."""
        self.cascade.step()
        passed: deque[_Running] = deque()
        while self._waiting and self._running < self.machine.concurrency:
            run = self._waiting.popleft()
            if self._look(run):
                passed.append(run)
            elif not self._start(run):
                self._waiting.appendleft(run)
                break
        passed.extend(self._waiting)
        self._waiting = passed
        self.cascade.step()
        self.pool.take_events()
        self._wake()

    def _wake(self) -> None:
        """Come back when a tier has an answer, or to see whether a deadline has passed."""
        dues = [tier.next_due for tier in self.tiers]
        times = [due for due in dues if due is not None]
        if self.tiers and self._waiting:
            times.append(self.now + _TICK)
        if times and (self._tick_at is None or min(times) < self._tick_at):
            self._tick_at = min(times)
            self._at(self._tick_at, self._tick)

    def _tick(self) -> None:
        if self._tick_at is not None and self._tick_at <= self.now:
            self._tick_at = None

    # The life of a request.

    def _look(self, run: _Running) -> bool:
        """Count its hits; whether some of them are still on their way up."""
        keys = run.asked.keys
        on_gpu = self.gpu.match_prefix(keys) if self.gpu is not None else 0
        found, pending = 0, False
        for key in keys[on_gpu:] if self.capacity else ():
            state = self.cascade.lookup(key, run.request)
            if state is Lookup.MISS:
                break
            pending = pending or state is Lookup.PENDING
            found += 1
        if pending:
            self._deferred += not run.deferred
            run.deferred = True
            return True
        run.hits = {"gpu": on_gpu}
        run.loads = keys[on_gpu : on_gpu + found]
        return False

    def _start(self, run: _Running) -> bool:
        """Give it a place on the GPU and load what there is; False if there is no room."""
        keys = run.asked.keys
        if self.gpu is not None:
            ready = [key for key in keys if self.gpu.lookup(key) is Lookup.HIT]
            plan = self.gpu.prepare_store(keys, run.request)
            if plan is None and self._running:
                return False
            if plan:
                self.gpu.hold(ready)
                run.gpu_held, run.gpu_new = ready, plan.keys
            self.gpu.take_events()
        self._running += 1
        run.started = self.now
        on_gpu = run.hits["gpu"]
        held = on_gpu + len(run.loads)
        ready_at = self.now
        if run.loads:
            plan_up = self.pool.prepare_load(run.loads, run.request)
            self.cascade.loading(plan_up.keys, run.request)
            for key in plan_up.keys:
                place = self.cascade.source(key, run.request) or "host"
                run.hits[place] = run.hits.get(place, 0) + 1
            ready_at = self._up.move(len(run.loads) * self.machine.block_bytes, self.now)
            self._at(ready_at, lambda: self.pool.complete_load(run.loads, run.request))
        else:
            self.cascade.started(run.request)
        run.prompt = run.asked.input_tokens or len(keys) * self.machine.block_tokens
        run.computed = max(run.prompt - held * self.machine.block_tokens, min(run.prompt, 1))
        self._at(ready_at, lambda: self._prefill(run))
        return True

    def _prefill(self, run: _Running) -> None:
        seconds = run.computed / self.machine.prefill_tokens_per_second
        self._prefill_free = max(self._prefill_free, self.now) + seconds
        self._prefill_busy += seconds
        self._at(self._prefill_free, lambda: self._answer(run))

    def _answer(self, run: _Running) -> None:
        """The first token is there; the prompt's blocks go down, and the rest of the answer follows."""
        run.prefill_ends = self.now
        if self.gpu is not None:
            self.gpu.complete_store(run.gpu_new, run.request)
            self.gpu.hold(run.gpu_new)
            run.gpu_held = [*run.gpu_held, *run.gpu_new]
        plan = self.pool.prepare_store(run.asked.keys, run.request) if self.capacity else None
        if plan:
            self._evicted += len(plan.evicted)
            stored = plan.keys
            landed = self._down.move(len(stored) * self.machine.block_bytes, self.now)
            self._at(landed, lambda: self._stored(stored, run.request))
        self._at(self.now + run.asked.output_tokens / self.machine.decode_tokens_per_second, lambda: self._end(run))

    def _stored(self, keys: Sequence[Key], request: Request) -> None:
        self.cascade.stored(self.pool.complete_store(keys, request))

    def _end(self, run: _Running) -> None:
        if self.gpu is not None:
            self.gpu.release(run.gpu_held)
            self.gpu.finish(run.request)
        self.cascade.finish(run.request)
        self.pool.finish(run.request)
        self._running -= 1
        outcome = Outcome(
            arrival=run.arrival,
            started=run.started,
            first_token=run.prefill_ends,
            ended=self.now,
            blocks=len(run.asked.keys),
            prompt_tokens=run.prompt,
            computed_tokens=run.computed,
            hits=run.hits,
        )
        self._hits.update(run.hits)
        self._blocks += outcome.blocks
        self._tokens += run.prompt
        self._computed += run.computed
        self._ttfts.append(outcome.ttft)
        if self._done:
            self._done(outcome)
        if self._closed_loop:
            self._next_arrival()

    def result(self) -> TimedResult:
        """What it came to so far."""
        counters = self.pool.counters
        ttfts = np.array(self._ttfts or [0.0])
        moved = {tier.name: tier.stats().counters for tier in self.tiers}
        return TimedResult(
            policy=self.pool.policy.name,
            capacity_blocks=self.capacity,
            requests=len(self._ttfts),
            seconds=self.now - (self._first or 0.0),
            total_blocks=self._blocks,
            hit_blocks={place: hits for place, hits in self._hits.items() if hits},
            hit_ratio=self._hits.total() / self._blocks if self._blocks else 0.0,
            prompt_tokens=self._tokens,
            computed_tokens=self._computed,
            saved_tokens=self._tokens - self._computed,
            prefill_seconds=self._prefill_busy,
            ttft_mean=float(ttfts.mean()),
            ttft_percentiles={str(at): float(np.percentile(ttfts, at)) for at in (50, 90, 99)},
            bytes_loaded=self._up.nbytes,
            bytes_stored=self._down.nbytes,
            tier_bytes_read={name: of.get("bytes_read", 0) for name, of in moved.items()},
            tier_bytes_written={name: of.get("bytes_written", 0) for name, of in moved.items()},
            refused_stores=counters.refused.total(),
            evicted_blocks=self._evicted,
            deferred_requests=self._deferred,
            tiers={name: dict(link.counters) for name, link in self.cascade.stats().tiers.items()},
        )
