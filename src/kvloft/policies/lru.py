"""Least recently used."""

from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.queue import Queue
from kvloft.request import Key, Request


class LRU(Policy):
    """Evicts the block whose last use lies furthest back.

    A use is a store, and a request's end: then its whole chain becomes the most recent, tail first, head last.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue = Queue()

    def admit(self, offer: Offer) -> None:
        self._queue.add(offer.keys)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._queue.touch(chain[::-1])

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = self._queue.oldest(n, keep)
        self._queue.remove(victims)
        self.evictions["lru"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._queue.remove(keys)

    def clear(self) -> None:
        self._queue.clear()

    def sizes(self) -> dict[str, int]:
        return {"lru": len(self._queue)}
