"""LRU-2, after O'Neil, O'Neil and Weikum, "The LRU-K Page Replacement Algorithm for Database Disk Buffering", SIGMOD 1993.

A block is judged by its last use but one: a single burst of use does not make it look hot. Blocks used once have none and
go first. History outlives eviction, for a bounded number of blocks.

Deviations: a whole request is one reference of each of its blocks, so the paper's correlated reference period is the
request itself; history is bounded by a number of blocks, not by time.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Ranking, trim
from kvloft.request import Key, Request


class LRU2(Policy):
    """Evicts the block whose last use but one lies furthest back; among those used once, the one used longest ago."""

    name = "lru-2"
    HISTORY = 8
    """Evicted blocks whose last use is remembered, in capacities."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order = Ranking()
        self._last: dict[Key, int] = {}
        self._ghosts: OrderedDict[Key, int] = OrderedDict()
        self._clock = 0

    def admit(self, offer: Offer) -> None:
        for key in offer.keys:
            self._last[key] = self._clock
            self._order.place(key, self._ghosts.get(key, 0))

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        for key in keys:
            self._ghosts.pop(key, None)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._clock += 1
        for key in reversed(chain):
            self._order.place(key, self._order.rank(key) if key in stored else self._last[key])
            self._last[key] = self._clock

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = self._order.take(n, keep)
        for key in victims:
            self._ghosts[key] = self._last.pop(key)
        trim(self._ghosts, self.HISTORY * self.capacity, {*offer.keys})
        self.evictions["lru-2"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._order.remove(key)
            del self._last[key]

    def clear(self) -> None:
        self._order.clear()
        self._last.clear()
        self._ghosts.clear()
        self._clock = 0

    def sizes(self) -> dict[str, int]:
        return {"lru-2": len(self._order), "ghost": len(self._ghosts)}
