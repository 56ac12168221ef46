"""W-TinyLFU, after Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on
Storage 13(4), 2017.

A small LRU window takes in every block; what leaves it enters the main SLRU only if it was used more often, lately, than
the block that would have to go for it. How often, a sketch says, for blocks that are not resident too.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, oldest
from kvloft.policies.sketch import CountMinSketch
from kvloft.request import Key, Request


class WTinyLFU(Policy):
    """Window 1 % of the capacity, main SLRU with 80 % protected, as in the paper.

    Deviation: a store enters the window as one; the contest takes place when the next one needs the room.
    """

    name = "w-tinylfu"
    WINDOW = 0.01
    PROTECTED = 0.8

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._window_limit = max(1, int(self.WINDOW * capacity))
        self._protected_limit = max(1, int(self.PROTECTED * (capacity - self._window_limit)))
        self._window: Queue = OrderedDict()
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self._sketch = CountMinSketch(capacity)

    def admit(self, offer: Offer) -> None:
        # Not when uses are counted: their order, which is that of transfers, would matter.
        self._sketch.age()
        self._window.update(dict.fromkeys(offer.keys))

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        self._sketch.add(keys)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        fresh: list[Key] = []
        for key in reversed(chain):
            if key in self._window:
                self._window.move_to_end(key)
                fresh.append(key)
            elif key in self._protected:
                self._protected.move_to_end(key)
            elif key in stored:
                self._probation.move_to_end(key)
            else:
                del self._probation[key]
                self._protected[key] = None
        while len(self._protected) > self._protected_limit:
            self._probation[self._protected.popitem(last=False)[0]] = None
        self._fill_main(fresh)
        self._sketch.add([key for key in chain if key not in stored])

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        challengers = oldest(self._window, n, keep)
        incumbents = oldest(itertools.chain(self._probation, self._protected), n, keep)
        uses = self._sketch.count(challengers + incumbents)
        wins = uses[: len(challengers)]
        holds = uses[len(challengers) :]
        victims: list[Key] = []
        at = won = 0
        while len(victims) < n:
            if at < len(challengers) and (won == len(incumbents) or wins[at] <= holds[won]):
                victims.append(challengers[at])
                del self._window[challengers[at]]
                self.evictions["window"] += 1
            else:
                victims.append(incumbents[won])
                self.evictions[self._leave_main(incumbents[won])] += 1
                won += 1
                if at < len(challengers):
                    # It has won its place, and may lose it in the same pass to those behind it.
                    del self._window[challengers[at]]
                    self._probation[challengers[at]] = None
                    incumbents.append(challengers[at])
                    holds.append(wins[at])
            at += 1
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if self._window.pop(key, self) is self:
                self._leave_main(key)

    def clear(self) -> None:
        for queue in (self._window, self._probation, self._protected):
            queue.clear()
        self._sketch.clear()

    def sizes(self) -> dict[str, int]:
        return {"window": len(self._window), "probation": len(self._probation), "protected": len(self._protected)}

    def _fill_main(self, fresh: Sequence[Key]) -> None:
        """While the main part has room, what is too much for the window enters it without a contest: of a chain, tail to
        head, the blocks nearest to the head."""
        room = self.capacity - self._window_limit - len(self._probation) - len(self._protected)
        moving = min(room, len(self._window) - self._window_limit, len(fresh))
        for key in fresh[len(fresh) - max(0, moving) :]:
            del self._window[key]
            self._probation[key] = None

    def _leave_main(self, key: Key) -> str:
        """Drop a block of the main part; the name of the queue it was in."""
        if self._probation.pop(key, self) is not self:
            return "probation"
        del self._protected[key]
        return "protected"
