"""2Q, after Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", VLDB 1994
(full version).

New blocks wait in a FIFO (A1in); what leaves it is remembered for a while (A1out); only a block that comes back from there
enters the LRU main queue (Am). A use while in A1in means little and changes nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, oldest, trim
from kvloft.request import Key, Request


class TwoQ(Policy):
    """Evicts from A1in while it is over its share, else from Am; from the other when the first has no candidate left."""

    name = "2q"
    IN = 0.25
    """Share of the capacity that A1in may hold before it gives up blocks first (the paper's Kin)."""
    OUT = 0.5
    """Keys remembered in A1out, in capacities (the paper's Kout)."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._in: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._out: Queue = OrderedDict()

    def admit(self, offer: Offer) -> None:
        for key in offer.keys:
            (self._main if key in self._out else self._in)[key] = None

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        for key in keys:
            self._out.pop(key, None)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in self._main:
                self._main.move_to_end(key)
            elif key in stored:
                self._in.move_to_end(key)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        surplus = max(0, min(n, len(self._in) - int(self.IN * self.capacity)))
        first = oldest(self._in, surplus, keep)
        main = oldest(self._main, n - len(first), keep)
        rest = oldest(self._in, n - len(main), keep)[len(first) :]
        for key in main:
            del self._main[key]
        for key in [*first, *rest]:
            del self._in[key]
            self._out[key] = None
        trim(self._out, int(self.OUT * self.capacity), {*offer.keys})
        self.evictions["in"] += len(first) + len(rest)
        self.evictions["main"] += len(main)
        return [*first, *main, *rest]

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del (self._in if key in self._in else self._main)[key]

    def clear(self) -> None:
        for queue in (self._in, self._main, self._out):
            queue.clear()

    def sizes(self) -> dict[str, int]:
        return {"in": len(self._in), "main": len(self._main), "ghost_out": len(self._out)}
