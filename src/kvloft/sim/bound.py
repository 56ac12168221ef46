"""What no policy can beat, because it knows the future: `optimum` and `min`.

Both are for chains: a block always follows the same block, so whoever asks for a block asks for all before it. Then the
next use of a block is never later than that of any block behind it.

`optimum` is Belady's rule with bypass (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer",
IBM Systems Journal 5(2), 1966), prefix-aware: after each request the cache keeps, of what it has and of what the request
brought, the blocks whose next use is nearest; of those used next by the same request, the ones nearer to its head. What it
keeps is thereby closed under prefixes: a kept block is never without those before it. Every hit it counts is a hit of a
leading run, and as Belady's rule with bypass is optimal even for blocks taken singly, nothing gains more hits.

`min` is the same rule without bypass, as a policy of the pool: all of a request must be stored, and what is used furthest
ahead leaves.
"""

import heapq
from collections import deque
from collections.abc import Sequence, Set
from itertools import pairwise

import numpy as np

from kvloft.policies import Offer, Policy
from kvloft.request import Key, Request
from kvloft.sim.replay import ReplayResult
from kvloft.traces.columns import ChainCheck, Columns, Ints, next_access


class Future:
    """A trace that knows what comes: for each access the request that is the next to use the block.

    Args:
        trace: the whole trace. Memory: about 40 bytes a block access.

    Raises:
        TraceError: the ids are no chains: some block follows different ones.
    """

    def __init__(self, trace: Columns) -> None:
        self.keys, lengths = trace
        self.requests = len(lengths)
        self.starts: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        """Where each request begins in `keys`, and where the last one ends, [requests + 1]."""
        ChainCheck()(self.keys, self.starts[:-1][lengths > 0], int(self.keys.max(initial=-1)) + 1)
        owner = np.append(np.repeat(np.arange(self.requests), lengths), self.requests)
        self.next: Ints = owner[next_access(self.keys)]
        """The next request that uses the block, [blocks]; the number of requests if none does."""

    def row(self, request: int) -> tuple[Ints, Ints]:
        """The keys of a request and their next uses."""
        span = slice(self.starts[request], self.starts[request + 1])
        return self.keys[span], self.next[span]

    def spans(self) -> tuple[Ints, Ints]:
        """Runs of neighbours in a request with the same next use: where each begins, and which of them is the first of
        each request, [requests + 1]."""
        change = np.ones(len(self.keys), bool)
        change[1:] = self.next[1:] != self.next[:-1]
        change[self.starts[:-1][np.diff(self.starts) > 0]] = True
        begins = np.flatnonzero(change)
        return np.append(begins, len(self.keys)), np.searchsorted(begins, self.starts)


def optimum(future: Future, capacity: int) -> tuple[list[int], int]:
    """The most hits there can be in a cache of `capacity` blocks.

    Returns:
        The hits of each request, and how many blocks were stored. A block leaves as soon as it is of no more use.
    """
    begins, firsts = future.spans()
    nexts = future.next[np.minimum(begins, max(len(future.keys) - 1, 0))].tolist() if len(future.keys) else []
    edges = begins.tolist()
    bounds = firsts.tolist()
    starts = future.starts.tolist()
    kept: dict[int, deque[list[int]]] = {}
    """By the request that uses them next: stretches of its chain [first, end, who brought them], the deepest first."""
    order: list[int] = []
    """The keys of `kept`, negated, as a heap: the furthest first."""
    size = stored = 0
    hits: list[int] = []
    for request, (low, high) in enumerate(pairwise(bounds)):
        hit = sum(end - first for first, end, _ in kept.pop(request, ()))
        hits.append(hit)
        size -= hit
        brought: list[list[int]] = []
        for at in range(low, high):
            following = nexts[at]
            if following < future.requests:
                stretch = [edges[at] - starts[request], edges[at + 1] - starts[request], request]
                if following not in kept:
                    kept[following] = deque()
                    heapq.heappush(order, -following)
                kept[following].append(stretch)
                brought.append(stretch)
                size += stretch[1] - stretch[0]
        while size > capacity:
            furthest = kept[-order[0]]
            stretch = furthest[0]
            drop = min(size - capacity, stretch[1] - stretch[0])
            stretch[1] -= drop
            size -= drop
            if stretch[0] == stretch[1]:
                furthest.popleft()
                if not furthest:
                    del kept[-heapq.heappop(order)]
        stored += sum(max(0, end - max(first, hit)) for first, end, _ in brought)
    return hits, stored


def replay_optimum(future: Future, capacity: int, trace: str, fraction: float) -> ReplayResult:
    """`optimum`, told as a replay. It refuses nothing; what it does not store is of no use or too far ahead."""
    hits, stored = optimum(future, capacity)
    total = len(future.keys)
    return ReplayResult(
        trace=trace,
        policy="optimum",
        capacity_blocks=capacity,
        capacity_fraction=fraction,
        hit_blocks=sum(hits),
        total_blocks=total,
        hit_ratio=sum(hits) / total if total else 0.0,
        stored_blocks=stored,
        evicted_blocks=stored,
        refused_stores=0,
    )


class Min(Policy):
    """Evicts what is used furthest ahead; of one request's blocks the deepest first. Request ids are places in the trace."""

    name = "min"

    def __init__(self, capacity: int, future: Future) -> None:
        super().__init__(capacity)
        self._future = future
        self._next: dict[Key, int] = {}
        """The next use of each resident."""
        self._order: list[tuple[int, int, Key]] = []
        """(-next use, -depth, key) as a heap, with entries that hold no more; `_next` tells."""
        self._past = 0
        """Requests whose uses of blocks are over."""

    def admit(self, offer: Offer) -> None:
        self._next.update(dict.fromkeys(offer.keys, -1))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        """The future says it all."""

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        assert isinstance(offer.request.id, int)
        self._pass(offer.request.id)
        victims: list[Key] = []
        spared: list[tuple[int, int, Key]] = []
        while len(victims) < n:
            entry = heapq.heappop(self._order)
            key = entry[2]
            if self._next.get(key) != -entry[0]:
                continue
            if key in keep:
                spared.append(entry)
                continue
            del self._next[key]
            victims.append(key)
        for entry in spared:
            heapq.heappush(self._order, entry)
        self.evictions["resident"] += n
        return victims

    def _pass(self, request: int) -> None:
        """All requests before this one are over: their blocks are next used by whoever comes then."""
        residents = self._next
        for past in range(self._past, request):
            keys, uses = self._future.row(past)
            for depth, (key, use) in enumerate(zip(keys.tolist(), uses.tolist(), strict=True)):
                if key in residents:
                    residents[key] = use
                    heapq.heappush(self._order, (-use, -depth, key))
        self._past = max(self._past, request)
        if len(self._order) > 4 * len(residents) + 1024:
            self._order = [entry for entry in self._order if residents.get(entry[2]) == -entry[0]]
            heapq.heapify(self._order)

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._next[key]

    def clear(self) -> None:
        self._next.clear()
        self._order.clear()

    def sizes(self) -> dict[str, int]:
        return {"resident": len(self._next)}
