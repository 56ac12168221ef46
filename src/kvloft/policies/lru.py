"""Least recently used."""

from collections.abc import Sequence, Set

from kvloft._table import Queues
from kvloft.policies.base import Offer, Policy
from kvloft.policies.open_chains import OpenChains
from kvloft.request import Key, Request


class LRU(Policy):
    """Evicts the block whose last use lies furthest back.

    A use is a store, and a request's end: then its whole chain becomes the most recent, tail first, head last. While the
    request runs, of its blocks those nearest to its tail leave first.
    """

    name = "lru"
    minds_running = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue = Queues(capacity)
        self._running = OpenChains()

    def admit(self, offer: Offer) -> None:
        self._running.admit(offer)
        self._queue.add(offer.keys[::-1])

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._running.finish(request.id)
        self._queue.touch(chain[::-1])

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = self._running.tails_first(self._queue.oldest(n, keep), self._queue, keep)
        self.forget(victims)
        self.evictions["lru"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._running.forget(keys)
        self._queue.remove(keys)

    def clear(self) -> None:
        self._running.clear()
        self._queue.clear()

    def sizes(self) -> dict[str, int]:
        return {"lru": len(self._queue)}
