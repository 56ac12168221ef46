"""The exact hit curve of LRU: all cache sizes in one pass over the trace.

LRU is a stack algorithm (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
Journal 9(2), 1970): what a cache of n blocks holds is the top n of one stack, whatever n is. In the pool a request is one
step: it puts its whole chain on top, head first, so the cache of n blocks serves block i of a chain if the deepest of blocks
0 .. i lies at depth n or less when the request comes. Counting those depths gives the hits of every size at once.

That holds from the length of the longest request on. A smaller cache refuses the longest requests whole, and then no longer
holds the top of the stack. Nor does any cache where requests say that conversations are over: the pool lets go of their
blocks first.

The pass is vectorised. Blocks that were neighbours in an earlier request are mostly neighbours in a later one, so depths are
computed for stretches of them: a stretch whose blocks were last used at times p, p-1, ... lies under everything used since
p, less what has been used again in the meantime; the latter is counted for all stretches of a chunk at once, bit by bit of
p's rank, as a radix sort would move them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from kvloft._table import exchange
from kvloft.sim.replay import Capacity, ReplayResult, Survey, survey
from kvloft.sim.sweep import Progress, check_policies, sweep_pairs
from kvloft.traces.columns import ChainCheck, Columns, Ints, Numbering, columns, grown
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace


class LRUCurve:
    """Depths at which LRU's stack serves a trace. `add` all its requests, then ask for `hits`.

    Memory: 20 bytes a unique block, and some 150 bytes a block of the largest `Columns` added.
    """

    def __init__(self) -> None:
        self.blocks = 0
        """Block accesses so far."""
        self.unique = 0
        """Blocks in the stack."""
        self.longest = 0
        """Blocks of the longest request: the curve is the pool's from this size on."""
        self._number = Numbering()
        self._check = ChainCheck()
        self._last: Ints = np.zeros(0, np.int64)
        """By block: its place in the stack, 0 at the bottom; -1 if it is not there."""
        self._depths: Ints = np.zeros(1, np.int64)
        """How many block accesses needed a cache of just this size."""

    def hits(self, capacities: Iterable[int]) -> list[int]:
        """Blocks that caches of these sizes would have served."""
        total = np.cumsum(self._depths)
        return [int(total[min(capacity, len(total) - 1)]) for capacity in capacities]

    def results(self, trace: str, sizes: Iterable[tuple[int, float]]) -> list[ReplayResult]:
        """What replays at these sizes (blocks, share of the unique ones) would give: exactly that, if all requests fit."""
        given = list(sizes)
        found = []
        for (capacity, fraction), hits in zip(given, self.hits(capacity for capacity, _ in given), strict=True):
            stored = self.blocks - hits
            found.append(
                ReplayResult(
                    trace=trace,
                    policy="lru",
                    capacity_blocks=capacity,
                    capacity_fraction=fraction,
                    hit_blocks=hits,
                    total_blocks=self.blocks,
                    hit_ratio=hits / self.blocks if self.blocks else 0.0,
                    stored_blocks=stored,
                    evicted_blocks=stored - min(capacity, self.unique),
                    refused_stores=0,
                )
            )
        return found

    def add(self, requests: Columns) -> None:
        """Requests that follow those added before.

        Raises:
            TraceError: the ids are not prefix-chained.
        """
        lengths = requests.lengths[requests.lengths > 0]
        count = len(requests.keys)
        if not count:
            return
        keys = self._number(requests.keys)
        self._last = grown(self._last, self._number.count, -1)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        self._check(keys, starts, self._number.count)
        # The blocks of a request go on the stack tail first.
        stamps = np.repeat(self.unique + starts + ends - 1, lengths) - np.arange(count)
        exchange(self._last, keys, stamps)
        self._measure(stamps, starts, ends)
        self.blocks += count
        self.longest = max(self.longest, int(lengths.max()))
        self._compact(count)

    def _measure(self, before: Ints, starts: Ints, ends: Ints) -> None:
        """Add the depths of one chunk's accesses, by the times at which their blocks were used before; -1: never."""
        breaks = np.ones(len(before), bool)
        np.not_equal(before[1:], before[:-1] - 1, out=breaks[1:])
        breaks[starts] = True
        cold = before < 0
        breaks |= cold
        firsts = np.flatnonzero(breaks)
        sizes = np.diff(firsts, append=len(before))
        warm = ~cold[firsts]
        firsts, sizes = firsts[warm], sizes[warm]
        if not len(firsts):
            return
        times = before[firsts]
        request = np.searchsorted(starts, firsts, "right") - 1
        now = self.unique + starts[request]
        # In a request by time, so that its own stretches, which are all still in the stack, are not taken for used again.
        order = np.lexsort((times, request))
        again = np.empty_like(times)
        again[order] = _weight_above(times[order], sizes[order])
        depth = now - times - again
        # A stretch counts as far as it is in the leading run, and no block is served without those before it.
        colds = np.append(np.flatnonzero(cold), len(before))
        leading = firsts < np.minimum(colds[np.searchsorted(colds, starts)], ends)[request]
        depth, sizes, request = depth[leading], sizes[leading], request[leading]
        if not len(depth):
            return
        far = int((depth + sizes).max()) + 1
        deepest = np.maximum.accumulate(depth + sizes - 1 + request * far)
        above = np.zeros_like(depth)
        above[1:] = np.where(request[1:] == request[:-1], deepest[:-1] - request[:-1] * far, 0)
        covered = np.clip(above - depth + 1, 0, sizes)
        slope = np.bincount(depth + covered, minlength=far + 1) - np.bincount(depth + sizes, minlength=far + 1)
        found = np.cumsum(slope) + np.bincount(above, covered, far + 1).astype(np.int64)
        self._depths = grown(self._depths, far + 1, 0)
        self._depths[: far + 1] += found

    def _compact(self, count: int) -> None:
        """Renumber the stack, so that its places are 0 .. unique-1 again."""
        seen = np.flatnonzero(self._last >= 0)
        stamps = self._last[seen]
        places = np.zeros(self.unique + count, np.int32)
        places[stamps] = 1
        np.cumsum(places, out=places)
        self._last[seen] = places[stamps] - 1
        self.unique = len(seen)


def _weight_above(values: Ints, weights: Ints) -> Ints:
    """For each of distinct values, the sum of the weights of those before it that are greater.

    Radix sort, most significant bit first: where two values part, the one with bit 0 has met all greater ones before it that
    agree with it so far.
    """
    count = len(values)
    rank = np.empty(count, np.int64)
    rank[np.argsort(values)] = np.arange(count)
    place = np.arange(count)
    origin = place.copy()
    found = np.zeros(count, np.int64)
    for bit in range((count - 1).bit_length() - 1, -1, -1):
        high = (rank >> bit) & 1
        group = (place >> (bit + 1)) << (bit + 1)
        mass = np.zeros(count + 1, np.int64)
        np.cumsum(high * weights, out=mass[1:])
        highs = np.zeros(count + 1, np.int64)
        np.cumsum(high, out=highs[1:])
        found += np.where(high, 0, mass[:-1] - mass[group])
        rise = highs[:-1] - highs[group]
        target = np.where(high, group + (1 << bit) + rise, place - rise)
        moved = []
        for column in (rank, weights, origin, found):
            new = np.empty_like(column)
            new[target] = column
            moved.append(new)
        rank, weights, origin, found = moved
    result = np.empty_like(found)
    result[origin] = found
    return result


def lru_curve(trace: Iterable[TraceRequest], tell: Callable[[int], None] = lambda _blocks: None) -> LRUCurve:
    """The curve of a whole trace; `tell` hears how many block accesses are done."""
    curve = LRUCurve()
    for part in columns(trace, lambda: min(max(1 << 20, curve.unique), 1 << 23)):
        curve.add(part)
        tell(curve.blocks)
    return curve


def curves(
    trace: Trace,
    policies: Sequence[str],
    sizes: Sequence[Capacity],
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
) -> list[ReplayResult]:
    """Every policy at every size, in that order: LRU in one pass where that is exact, all else by `sweep`.

    Args:
        trace: as for `sweep`, like all that follows.
        policies: names.
        sizes: cache sizes.
        workers: processes.
        progress: hears of the pass for LRU, then of the runs that are left for `sweep`.
        counted: the trace's survey.

    Raises:
        ConfigError: as for `sweep`.
        TraceError: LRU is asked for, and the ids are not prefix-chained.
    """
    check_policies(policies)
    counted = counted or survey(trace)
    found: dict[tuple[str, Capacity], ReplayResult] = {}
    told = False

    def untold() -> Iterator[TraceRequest]:
        """The trace, up to the first request that says that its conversation is over."""
        nonlocal told
        for request in trace:
            told = request.last
            if told:
                return
            yield request

    if "lru" in policies:
        curve = lru_curve(untold(), lambda blocks: progress(blocks, counted.blocks) if progress else None)
        given = [(size.of(counted.unique), size.fraction(counted.unique)) for size in sizes]
        for size, result in zip(sizes, curve.results(trace.name, given), strict=True):
            if not told and result.capacity_blocks >= curve.longest:
                found["lru", size] = result
    pairs = [(policy, size) for policy in policies for size in sizes]
    left = list(dict.fromkeys(pair for pair in pairs if pair not in found))
    found.update(zip(left, sweep_pairs(trace, left, workers, progress, counted), strict=True))
    return [found[pair] for pair in pairs]
