"""First in, first out. The blocks of a request enter as one, when it ends: tail first, so that its head stays longest."""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, oldest
from kvloft.request import Key, Request


class FIFO(Policy):
    """Evicts the block that was stored longest ago, however often it was read."""

    name = "fifo"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue: Queue = OrderedDict()

    def admit(self, offer: Offer) -> None:
        self._queue.update(dict.fromkeys(offer.keys))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in stored:
                self._queue.move_to_end(key)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = oldest(self._queue, n, keep)
        self.forget(victims)
        self.evictions["fifo"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._queue[key]

    def clear(self) -> None:
        self._queue.clear()

    def sizes(self) -> dict[str, int]:
        return {"fifo": len(self._queue)}
