"""Plain replay: one request after another through the pool that serves, without time."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import msgspec
import numpy as np
import numpy.typing as npt

from kvloft.errors import ConfigError
from kvloft.policies import Policy
from kvloft.request import Key
from kvloft.sim.intake import Intake
from kvloft.traces.columns import Numbering, columns, grown
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace


class Survey(msgspec.Struct, frozen=True):
    """What a trace holds. Counts are of requests and blocks."""

    requests: int
    blocks: int
    """Block accesses: the sum of all requests' lengths."""
    unique: int
    longest: int
    """Blocks of the longest request."""


def survey(requests: Iterable[TraceRequest]) -> Survey:
    """Count a trace in one pass; memory grows with the unique blocks only."""
    number = Numbering()
    seen: npt.NDArray[np.int8] = np.zeros(0, np.int8)
    count = blocks = longest = 0
    for keys, lengths in columns(requests):
        numbers = number(keys)
        seen = grown(seen, number.count, 0)
        seen[numbers] = 1
        count += len(lengths)
        blocks += len(keys)
        longest = max(longest, int(lengths.max(initial=0)))
    return Survey(count, blocks, int(np.count_nonzero(seen)), longest)


def watched(trace: Trace, tell: Callable[[int, int], None]) -> Iterator[TraceRequest]:
    """The trace's requests, while `tell` hears how many of its bytes have been read, of how many."""
    for at, request in enumerate(trace):
        if not at % 256:
            tell(trace.position, trace.size)
        yield request
    tell(trace.size, trace.size)


MOST_BLOCKS = (1 << 30) - 1
"""As many as tables take; more than any machine holds."""


class Capacity(msgspec.Struct, frozen=True):
    """A size of cache: blocks, or a share of the trace's unique blocks, rounded down."""

    blocks: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> "Capacity":
        """From "5%", "0.5%" or a number of blocks such as "20000".

        Raises:
            ConfigError: it is neither.
        """
        number = text.strip().removesuffix("%")
        try:
            value = Fraction(number)
        except (ValueError, ZeroDivisionError):
            value = Fraction(0)
        if text.strip().endswith("%") and value > 0:
            return cls(share=value / 100)
        if 0 < value <= MOST_BLOCKS and value.denominator == 1:
            return cls(blocks=int(value))
        raise ConfigError(f"capacity: {text!r} is neither a share of the unique blocks, such as 5%, nor a number of blocks")

    def of(self, unique: int) -> int:
        """Blocks, for a trace of so many unique ones.

        Raises:
            ConfigError: the share is less than one block.
        """
        if self.blocks is not None:
            return self.blocks
        assert self.share is not None
        blocks = int(self.share * unique)
        if not blocks:
            raise ConfigError(
                f"capacity: {float(self.share):.4%} of {unique} unique blocks is less than one block; give more, or blocks"
            )
        return blocks

    def fraction(self, unique: int) -> float:
        """The share asked for, or what the blocks are of the unique ones."""
        return float(self.share) if self.share is not None else self.of(unique) / unique


class ReplayResult(msgspec.Struct, frozen=True):
    """What one policy did with one trace at one size. Counts are of blocks, but for `refused_stores`."""

    trace: str
    policy: str
    capacity_blocks: int
    capacity_fraction: float
    """Share of the trace's unique blocks: the one asked for, before rounding down."""
    hit_blocks: int
    """Blocks of the leading run of each request that was readable when it came."""
    total_blocks: int
    hit_ratio: float
    stored_blocks: int
    evicted_blocks: int
    refused_stores: int
    """Stores that the pool refused: calls."""


class Replay:
    """One pool under one trace. `step` each request in turn, then take the `result`.

    A request matches its leading run of readable blocks, loads it, stores the rest in one call, and ends; then comes the
    next one. That is all a cache sees of an engine that serves one request at a time. Hints that speak of time go by the
    times of the requests.
    """

    def __init__(self, policy: str | type[Policy] | Policy, capacity: int, intake: Intake | None = None) -> None:
        self.pool = (intake or Intake()).pool(capacity, policy, lambda: self._now)
        self._now = 0.0
        self.requests = 0
        self.hits = 0
        self.total = 0
        self.evicted = 0
        self.victims: list[Key] = []
        """Blocks that the last step evicted, in the order of their going."""

    def step(self, asked: TraceRequest) -> int:
        """One request from beginning to end; how many of its blocks hit."""
        pool, keys = self.pool, asked.keys
        if asked.time is not None:
            self._now = asked.time
        request = asked.request(self.requests)
        hits = pool.match_prefix(keys)
        if hits:
            loaded = pool.prepare_load(keys[:hits], request)
            pool.complete_load(loaded.keys, request)
        plan = pool.prepare_store(keys, request)
        self.victims = plan.evicted if plan else []
        if plan:
            pool.complete_store(plan.keys, request)
            self.evicted += len(plan.evicted)
        pool.finish(request)
        pool.take_events()
        self.requests += 1
        self.hits += hits
        self.total += len(keys)
        return hits

    def result(self, trace: str, fraction: float) -> ReplayResult:
        counters = self.pool.counters
        return ReplayResult(
            trace=trace,
            policy=self.pool.policy.name,
            capacity_blocks=self.pool.capacity,
            capacity_fraction=fraction,
            hit_blocks=self.hits,
            total_blocks=self.total,
            hit_ratio=self.hits / self.total if self.total else 0.0,
            stored_blocks=counters.stored,
            evicted_blocks=self.evicted,
            refused_stores=counters.refused.total(),
        )
