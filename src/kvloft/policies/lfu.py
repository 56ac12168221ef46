"""Least frequently used with dynamic aging, after Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating Content
Management Techniques for Web Proxy Caches", ACM SIGMETRICS Performance Evaluation Review 27(4), 2000 (LFU-DA).

A block's rank is its number of uses plus the cache's age, and the age is the rank of the last victim: what was popular
long ago stays at an old age's rank and is overtaken.
"""

from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Ranking
from kvloft.request import Key, Request


class LFU(Policy):
    """Evicts the block of the lowest rank; among equals the one used longest ago."""

    name = "lfu"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order = Ranking()
        self._uses: dict[Key, int] = {}
        self._age = 0

    def admit(self, offer: Offer) -> None:
        for key in offer.keys:
            self._uses[key] = 1
            self._order.place(key, self._age + 1)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key not in stored:
                self._uses[key] += 1
            self._order.place(key, self._age + self._uses[key])

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = self._order.take(n, keep)
        self._age = max(self._age, self._order.taken_rank)
        for key in victims:
            del self._uses[key]
        self.evictions[self.name] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._order.remove(key)
            del self._uses[key]

    def clear(self) -> None:
        self._order.clear()
        self._uses.clear()
        self._age = 0

    def sizes(self) -> dict[str, int]:
        return {self.name: len(self._order)}
