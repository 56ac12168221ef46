"""Segmented LRU, after Karedla, Love and Wherry, "Caching Strategies to Improve Disk System Performance", IEEE Computer
27(3), 1994.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, oldest
from kvloft.request import Key, Request


class SLRU(Policy):
    """Two LRU queues: new blocks are on probation; a reused one is protected, and what that pushes out is on probation
    again, as its youngest. Evicts from probation first."""

    name = "slru"
    PROTECTED = 0.8
    """Share of the capacity that may be protected."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()

    def admit(self, offer: Offer) -> None:
        self._probation.update(dict.fromkeys(offer.keys))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in self._protected:
                self._protected.move_to_end(key)
            elif key in stored:
                self._probation.move_to_end(key)
            else:
                del self._probation[key]
                self._protected[key] = None
        while len(self._protected) > max(1, int(self.PROTECTED * self.capacity)):
            self._probation[self._protected.popitem(last=False)[0]] = None

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = oldest(self._probation, n, keep)
        protected = oldest(self._protected, n - len(victims), keep)
        self.evictions["probation"] += len(victims)
        self.evictions["protected"] += len(protected)
        victims += protected
        self.forget(victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del (self._probation if key in self._probation else self._protected)[key]

    def clear(self) -> None:
        self._probation.clear()
        self._protected.clear()

    def sizes(self) -> dict[str, int]:
        return {"probation": len(self._probation), "protected": len(self._protected)}
