"""Least recently used."""

from collections import OrderedDict
from collections.abc import Sequence, Set
from itertools import filterfalse, islice

from kvloft.policies.base import Offer, Policy
from kvloft.request import Key, Request


class LRU(Policy):
    """Evicts the block whose last use lies furthest back.

    A use is a store, and a request's end: then its whole chain becomes the most recent, tail first, head last.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order: OrderedDict[Key, None] = OrderedDict()

    def admit(self, offer: Offer) -> None:
        self._order.update(dict.fromkeys(offer.keys))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            self._order.move_to_end(key)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = list(islice(filterfalse(keep.__contains__, self._order), n))
        self.forget(victims)
        self.evictions["lru"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._order[key]

    def clear(self) -> None:
        self._order.clear()

    def sizes(self) -> dict[str, int]:
        return {"lru": len(self._order)}
