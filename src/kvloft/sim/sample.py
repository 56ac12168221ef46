"""Sampling that keeps chains whole: a small trace that behaves like a large one.

After SHARDS (Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS", FAST 2015): take the part of
the trace whose hash falls below a rate, and replay it in a cache smaller by that rate. SHARDS samples blocks; here a block
is worth nothing without those before it, so whole families of requests are taken or left: those that share their first block
off the trunk. The trunk are the blocks, such as system prompts, that more than one in `_FEW` requests begin with. It belongs
to every family; a cache holds it once, whatever the rate, so only the rest of the cache is made smaller.

Several samples without common families, each at the same rate, give the estimate and its standard error.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from kvloft.errors import ConfigError
from kvloft.sim.replay import Capacity, Survey
from kvloft.sim.sweep import Progress, sweep
from kvloft.traces.columns import Ints, Numbering, columns, grown
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace

_FEW = 100
_FEWEST = 50
"""Families in a sample below which its error says nothing; see docs/figures.md."""
ENOUGH = 400
"""Families in a sample from which the true hit ratio lies within the error as often as it should."""


class SampledResult(msgspec.Struct, frozen=True):
    """An estimate of a replay's hit ratio."""

    trace: str
    policy: str
    capacity_blocks: int
    capacity_fraction: float
    hit_ratio: float
    error: float
    """Standard error of the hit ratio, from the spread between the samples."""
    rate: float
    """Share of the request families in each sample."""
    samples: int
    families: int
    """Request families in each sample, on average. Below `ENOUGH` the error is too small more often than it should be."""
    sampled_blocks: int
    """Block accesses that were replayed, in all samples."""
    refused_stores: int
    """Stores refused because the smaller cache could not hold a request. If there are any, the estimate is biased."""


class Sample(Trace):
    """The requests of a trace whose families fall into one part of the hash space.

    Args:
        trace: the whole trace.
        trunk: blocks that tell no families apart.
        low: where the part begins, 0 to 1.
        high: where it ends.
        seed: of the hash.
    """

    def __init__(self, trace: Trace, trunk: frozenset[int], low: float, high: float, seed: int) -> None:
        super().__init__(trace.path)
        self.block_tokens, self.size = trace.block_tokens, trace.size
        self._trace, self._trunk = trace, trunk
        self._low, self._high = round(low * 2**64), round(high * 2**64)
        self._salt = _mix(seed + 1)

    def __iter__(self) -> Iterator[TraceRequest]:
        trunk, salt = self._trunk, self._salt
        for request in self._trace:
            if self._low <= _mix(_family(request, trunk) ^ salt) < self._high:
                self.position = self._trace.position
                yield request


def _family(request: TraceRequest, trunk: frozenset[int]) -> int:
    """The first block of a request that tells its family from others."""
    return next((key for key in request.keys if key not in trunk), request.keys[-1] if request.keys else -1)


def _mix(value: int) -> int:
    """64 bits that look random (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)


def find_trunk(requests: Iterable[TraceRequest]) -> tuple[Survey, frozenset[int]]:
    """The trace's survey and its trunk, in one pass. Memory: 16 bytes a unique block."""
    number = Numbering()
    counts: Ints = np.zeros(0, np.int64)
    ids: Ints = np.zeros(0, np.int64)
    count = blocks = longest = 0
    for keys, lengths in columns(requests):
        numbers = number(keys)
        counts, ids = grown(counts, number.count, 0), grown(ids, number.count, 0)
        counts += np.bincount(numbers, minlength=len(counts))
        ids[numbers] = keys
        count += len(lengths)
        blocks += len(keys)
        longest = max(longest, int(lengths.max(initial=0)))
    trunk = frozenset(ids[counts * _FEW > count].tolist())
    return Survey(count, blocks, int(np.count_nonzero(counts)), longest), trunk


def estimate(
    trace: Trace,
    policies: Sequence[str],
    sizes: Sequence[Capacity],
    rate: float,
    samples: int = 4,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    found: tuple[Survey, frozenset[int]] | None = None,
) -> list[SampledResult]:
    """Hit ratios of every policy at every size, from samples.

    Args:
        trace: read whole for its survey, and by each run.
        policies: as for `sweep`.
        sizes: of the whole trace; the samples get accordingly smaller caches.
        rate: of each sample, up to 1 / samples.
        samples: how many, at least 2.
        seed: of the hash that chooses families.
        workers: as for `sweep`.
        progress: as for `sweep`.
        found: the trace's survey and trunk.

    Raises:
        ConfigError: the samples do not fit into the trace, or have too few families to say anything, or as for `sweep`.
    """
    if samples < 2 or not 0 < rate * samples <= 1:
        raise ConfigError(f"sample: {samples} samples of {rate:g} each; give at least 2, of together at most 1")
    counted, trunk = found or find_trunk(trace)
    families = len({_family(request, trunk) for request in trace})
    if families * rate < _FEWEST:
        enough = families / samples >= _FEWEST
        hint = f"give at least {_FEWEST / families:.2g}" if enough else "leave it out: replaying all is exact"
        raise ConfigError(
            f"sample: {rate:g} of {families:,} request families are too few to estimate from (fewer than {_FEWEST}); {hint}"
        )
    whole = [size.of(counted.unique) for size in sizes]
    small = [max(1, round(_smaller(size, len(trunk), rate))) for size in whole]
    runs = []
    for part in range(samples):
        sample = Sample(trace, trunk, part * rate, (part + 1) * rate, seed)

        def tell(done: int, total: int, part: int = part) -> None:
            if progress:
                progress(part * total + done, samples * total)

        runs.append(sweep(sample, policies, [Capacity(blocks=size) for size in small], workers, tell))
    results = []
    for at, of_each in enumerate(zip(*runs, strict=True)):
        size = at % len(sizes)
        blocks = sum(run.total_blocks for run in of_each)
        ratio = sum(run.hit_blocks for run in of_each) / blocks if blocks else 0.0
        # The ratio is one of sums, so each sample's departure from it weighs as much as the sample has blocks.
        spread = sum((run.hit_blocks - ratio * run.total_blocks) ** 2 for run in of_each)
        error = math.sqrt(spread * samples / (samples - 1)) / blocks if blocks else 0.0
        results.append(
            SampledResult(
                trace=trace.name,
                policy=of_each[0].policy,
                capacity_blocks=whole[size],
                capacity_fraction=sizes[size].fraction(counted.unique),
                hit_ratio=ratio,
                error=error,
                rate=rate,
                samples=samples,
                families=round(families * rate),
                sampled_blocks=blocks,
                refused_stores=sum(run.refused_stores for run in of_each),
            )
        )
    return results


def _smaller(capacity: int, trunk: int, rate: float) -> float:
    return trunk + (capacity - trunk) * rate if capacity > trunk else capacity * rate
