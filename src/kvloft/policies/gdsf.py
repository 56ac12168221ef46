"""GreedyDual-Size with frequency, after Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
Caching Policy", HP Laboratories report HPL-98-69R1, 1998.

A block's rank is the cache's age plus uses x cost / size, and the age is the rank of the last victim. All blocks are of one
size. The cost is that of computing the block again: by attention it grows with depth, so a token behind `EVEN` blocks costs
twice one at the head. A block without its predecessors serves nobody, though, so all blocks that a request uses together
get the cost of their mean depth, and the head goes last.
"""

from collections.abc import Sequence, Set

from kvloft.policies.base import Offer
from kvloft.policies.lfu import LFU
from kvloft.request import Key, Request


class GDSF(LFU):
    """LFU whose ranks know what a block costs to compute."""

    name = "gdsf"
    EVEN = 64
    """Depth in blocks at which attention costs as much as the rest of the model."""
    SCALE = 1024
    """Steps of rank for one use at the head of a chain."""

    def admit(self, offer: Offer) -> None:
        for key in reversed(offer.keys):
            self._uses[key] = 1
            self._order.place(key, self._age + self.SCALE)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        cost = self.SCALE * (2 * self.EVEN + len(chain)) // (2 * self.EVEN)
        for key in reversed(chain):
            if key not in stored:
                self._uses[key] += 1
            self._order.place(key, self._age + self._uses[key] * cost)
