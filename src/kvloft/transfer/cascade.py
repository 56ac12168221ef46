"""The cascade: host memory and the tiers below it, kept moving."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvloft.errors import ConfigError
from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, Tier, TierStats
from kvloft.tracing import Spans
from kvloft.transfer.breaker import Breaker, BreakerState
from kvloft.transfer.demotion import Demoter
from kvloft.transfer.latency import Latency, PrefillRate
from kvloft.transfer.ledger import SlotLedger
from kvloft.transfer.limits import CascadeConfig
from kvloft.transfer.link import Course, Link
from kvloft.transfer.promotion import Promoter
from kvloft.transfer.residency import Residency
from kvloft.transfer.spans import JobSpans

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkStats:
    """One tier as the cascade sees it. Sizes are in blocks."""

    loads: BreakerState
    """Whether blocks are loaded from it."""
    stores: BreakerState
    """Whether blocks are stored to it."""
    loading: int
    """Slots that it is writing into, those of overdue jobs included."""
    storing: int
    """Slots that it is reading from, those of overdue jobs included."""
    queued: int
    """Blocks that wait to go down."""
    trips: int
    """How often a breaker opened."""
    oldest_job_seconds: float
    """Age of the oldest job without an answer."""
    counters: dict[str, int]
    """Blocks so far, by what became of them: load_ok, load_miss, load_failed, store_ok, store_dropped, store_failed,
    present (not stored, it had them), dropped_backpressure, dropped_gone (left host memory too soon), dropped_open (it
    was left alone), shunned (recomputing was quicker), overdue; jobs: probes, unasked (answers to no question); calls:
    raised."""
    tier: TierStats


@dataclass(frozen=True, slots=True)
class CascadeStats:
    """The cascade at one moment. Sizes are in blocks."""

    waiting: int
    """Requests told to wait."""
    waiting_seconds: float
    """For how long the one that has waited longest has."""
    wanted: int
    """Blocks that wait for room, or for a tier to know of them."""
    loading: int
    """Blocks with room, on their way up."""
    held: int
    """Blocks kept for requests that wait."""
    set_aside: int
    """Slots out of use because a load that was given up may still write into them."""
    counters: dict[str, int]
    """Blocks so far: refused (beyond the prefix that fits), expired (their request had waited too long); requests:
    abandoned (they stopped asking)."""
    prefill_tokens_per_second: float | None
    tiers: dict[str, LinkStats] = field(default_factory=dict)


class Cascade:
    """Moves blocks between a pool's host memory and the tiers below it, so that requests find them and nobody gets stuck.

    It has no threads and waits for nothing: tiers work on their own, and `step`, called once in each step of the engine,
    collects answers and hands out work. One thread at a time.

    A request asks for its blocks with `lookup`, again and again while told `PENDING`; what it is told is a `HIT` lies
    verified in host memory and stays until the request loads it (`loading`), ends (`finish`) or stops asking.

    Args:
        pool: who lives in host memory. Reset it through `reset`, never directly.
        view: the bytes of a slot.
        tiers: where blocks rest, the fastest first, with distinct names. The cascade closes them.
        config: bounds and deadlines.
        clock: seconds, monotonic.
        spans: makes spans of the tiers' jobs; None makes none.

    Raises:
        ConfigError: two tiers have the same name.
    """

    def __init__(
        self,
        pool: BlockPool,
        view: Callable[[int], Buffer],
        tiers: Sequence[Tier],
        config: CascadeConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        spans: Spans | None = None,
    ) -> None:
        names = [tier.name for tier in tiers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"tiers: {', '.join(map(repr, twice))} is the name of more than one; give each its own `name`")
        self.pool = pool
        self.config = config or CascadeConfig()
        self.prefill = PrefillRate(self.config.prefill_tokens_per_second)
        self._clock = clock
        self._links = [Link(index, tier, self._breaker(), self._breaker(), Latency()) for index, tier in enumerate(tiers)]
        self._spans = JobSpans(spans) if spans is not None else None
        if self._spans is not None:
            for link in self._links:
                link.observers.append(self._spans)
        self._ledger = SlotLedger(pool)
        self._up = Promoter(pool, self._links, view, self.config, self.prefill, self._ledger)
        self._down = Demoter(pool, self._links, view, self.config, self._ledger)
        self._used: dict[Key, None] = {}
        """Blocks used since the last step; the tiers will hear of them."""

    def _breaker(self) -> Breaker:
        config = self.config
        return Breaker(config.breaker_failures, config.breaker_seconds, config.breaker_longest_seconds)

    # The life of a request.

    def lookup(self, key: Key, request: Request, tiers: Collection[str] | None = None) -> Lookup:
        """Whether a block may be loaded: now (HIT), perhaps soon (PENDING), or not (MISS). Blocks are asked for one after
        the other, in chain order. A PENDING starts what is needed, and turns into one of the others in bounded time.

        Args:
            key: the block.
            request: who asks. It may ask any number of times; that counts as no access.
            tiers: names of the tiers it may load from; None for all, empty for host memory only.
        """
        return self._up.lookup(key, request, tiers, self._clock)

    def loading(self, keys: Sequence[Key], request: Request) -> None:
        """The request has pinned these blocks in the pool to read them; what was kept for it is now kept by that."""
        self._up.loading(request)
        self.used(keys)

    def used(self, keys: Iterable[Key]) -> None:
        """Blocks in host memory are of use again: read, or offered by another request."""
        keys = list(keys)
        self._used.update(dict.fromkeys(keys))
        self._down.used(keys)

    def stored(self, keys: Sequence[Key]) -> None:
        """Stores that completed; what admission wants goes down in the background."""
        self._down.stored(keys)

    def started(self, request: Request) -> None:
        """The request waits no more, whatever it found: nothing is kept for it any longer."""
        self._up.loading(request)

    def finish(self, request: Request) -> None:
        """The request has ended, or was aborted."""
        self._up.finish(request)

    def source(self, key: Key, request: Request) -> str | None:
        """Name of the tier that a block came from for this request; None if host memory had it."""
        return self._up.source(key, request)

    def watch(self) -> Residency:
        """From now on, know what lies in which tier. Whoever calls this takes what changed, from time to time."""
        return Residency(self._links)

    # The life of the engine.

    def step(self) -> None:
        """Collect answers, give up what takes too long, and start what may start."""
        now = self._clock()
        for link in self._links:
            self._collect(link, now)
            for job in link.overdue(now, self.config.hang_seconds):
                if job.course is Course.UP and not job.gone:
                    self._up.give_up(job)
        if self._used:
            self._touch(now)
        self._up.step(now)
        self._down.step(now)

    def has_pending_work(self) -> bool:
        """Whether further steps bring something nearer. What a hung tier owes is not waited for."""
        return self._up.pending or self._busy

    @property
    def _busy(self) -> bool:
        return self._down.pending or any(link.waiting for link in self._links)

    def reset(self, in_use: Iterable[int] = ()) -> None:
        """Drop all blocks in host memory, and the pool's; the tiers keep theirs. Slots that a tier may still be writing or
        reading stay out of use until it answers.

        Args:
            in_use: slots that somebody else may still write or read: out of use until `let_go`.
        """
        away = [*in_use, *(slot for link in self._links for job in link.surrender() for slot in job.slots)]
        self._ledger.add(away)
        self._down.reset()
        self._up.reset()
        self._used.clear()
        self.pool.reset(away=away)

    def let_go(self, slots: Iterable[int]) -> None:
        """Nobody but tiers writes or reads these slots of `reset` any more."""
        self._ledger.let_go(slots)

    def stats(self) -> CascadeStats:
        """Sizes and counters now."""
        now = self._clock()
        return CascadeStats(
            **self._up.sizes(),
            waiting_seconds=self._up.waiting_seconds(now),
            counters=dict(self._up.counters),
            prefill_tokens_per_second=self.prefill.tokens_per_second,
            tiers={link.name: self._link_stats(link, now) for link in self._links},
        )

    def close(self) -> bool:
        """Wait for the tiers, collect their answers, close them. Blocks; the only call that does.

        Returns:
            Whether all have let go of host memory. If not, it must not be unmapped: the tiers for which `close_seconds` did
            not suffice are left open, since closing one that hangs may take for ever.
        """
        until = self._clock() + self.config.close_seconds
        self.step()
        while self._drain(until) and self._busy and self._clock() < until:
            self.step()
        for link in self._links:
            if link.idle:
                link.tier.close()
            else:
                _log.warning("tier %s: still busy after %.3g s, left open", link.name, self.config.close_seconds)
        if self._spans is not None:
            self._spans.close()
        return all(link.idle for link in self._links)

    # Steps.

    def _collect(self, link: Link, now: float) -> None:
        for job, result in link.poll(now):
            if job.course is Course.DOWN:
                self._down.land(link, job, result)
            else:
                landed = self._up.land(link, job, result)
                self._down.promoted(landed, link)

    def _touch(self, now: float) -> None:
        keys = list(self._used)
        self._used.clear()
        for link in self._links:
            link.touch(keys, now)

    def _drain(self, until: float) -> bool:
        drained = True
        for link in self._links:
            drained &= link.tier.drain(max(0.0, until - self._clock()))
        return drained

    def _link_stats(self, link: Link, now: float) -> LinkStats:
        return LinkStats(
            loads=link.breakers[Course.UP].state,
            stores=link.breakers[Course.DOWN].state,
            loading=link.busy[Course.UP],
            storing=link.busy[Course.DOWN],
            queued=self._down.queued(link),
            oldest_job_seconds=link.oldest(now),
            trips=sum(breaker.trips for breaker in link.breakers.values()),
            counters=dict(link.counters),
            tier=link.tier.stats(),
        )
