"""SIEVE, after Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction
Algorithm for Web Caches", NSDI 2024.

A hand goes from the old to the young end of one queue: it spares what was read since it last came by, and takes the rest.
What it spared stays in its place, so young blocks that are never read again leave quickly.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, Sweep
from kvloft.request import Key, Request


class SIEVE(Policy):
    """The queue is kept in two parts, what the hand has passed and what lies ahead of it; when nothing lies ahead, the hand
    is back at the old end and the parts change places."""

    name = "sieve"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._passed: Queue = OrderedDict()
        self._ahead: Queue = OrderedDict()
        self._read: set[Key] = set()

    def admit(self, offer: Offer) -> None:
        self._ahead.update(dict.fromkeys(offer.keys))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key not in stored:
                self._read.add(key)
            elif key in self._ahead:
                self._ahead.move_to_end(key)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims: list[Key] = []
        while True:
            with Sweep(self._ahead, keep) as hand:
                while len(victims) < n and (found := hand.take()):
                    key = found[0]
                    if key in self._read:
                        self._read.remove(key)
                        self._passed[key] = None
                    else:
                        victims.append(key)
            if len(victims) < n or not self._ahead:
                self._passed.update(self._ahead)
                self._ahead, self._passed = self._passed, OrderedDict()
            if len(victims) == n:
                break
        if not self._ahead:
            # At once, or the hand would meet the newest blocks before it is back at the old end.
            self._ahead, self._passed = self._passed, OrderedDict()
        self.evictions["sieve"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del (self._ahead if key in self._ahead else self._passed)[key]
            self._read.discard(key)

    def clear(self) -> None:
        self._passed.clear()
        self._ahead.clear()
        self._read.clear()

    def sizes(self) -> dict[str, int]:
        return {"passed": len(self._passed), "ahead": len(self._ahead)}
