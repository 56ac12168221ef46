"""S3-FIFO, after Yang, Zhang, Qiu, Yue and Rashmi, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.

New blocks enter a small FIFO; those used more than once there move to the main FIFO, the others leave and are remembered
as ghosts; a ghost that comes back enters the main FIFO at once. The main FIFO gives each use (three at most) another round.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, Sweep, trim
from kvloft.request import Key, Request


class S3FIFO(Policy):
    """Evicts from the small queue while it is over its share, else from the main one.

    Reads are counted from the store on, which is none itself, as in the paper.
    """

    name = "s3-fifo"
    SMALL = 0.1
    """Share of the capacity that the small queue may hold before it gives up blocks first."""
    MOVE = 2
    """Reads that take a block from the small queue to the main one."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._ghosts: Queue = OrderedDict()
        self._reads: dict[Key, int] = {}
        """Of residents that have any."""

    def admit(self, offer: Offer) -> None:
        for key in offer.keys:
            (self._main if key in self._ghosts else self._small)[key] = None

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        for key in keys:
            self._ghosts.pop(key, None)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in stored:
                (self._small if key in self._small else self._main).move_to_end(key)
            else:
                self._reads[key] = min(3, self._reads.get(key, 0) + 1)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        limit = max(1, int(self.SMALL * self.capacity))
        victims: list[Key] = []
        with Sweep(self._small, keep) as small, Sweep(self._main, keep) as main:
            while len(victims) < n:
                found = (small.take() if len(small) >= limit else None) or main.take() or small.take()
                assert found, "fewer candidates than promised"
                key, came_from = found
                reads = self._reads.pop(key, 0)
                if came_from is main and reads:
                    self._main[key] = None
                    if reads > 1:
                        self._reads[key] = reads - 1
                elif came_from is small and reads >= self.MOVE:
                    self._main[key] = None
                else:
                    victims.append(key)
                    self.evictions["small" if came_from is small else "main"] += 1
                    if came_from is small:
                        self._ghosts[key] = None
        trim(self._ghosts, self.capacity - limit, {*offer.keys})
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del (self._small if key in self._small else self._main)[key]
            self._reads.pop(key, None)

    def clear(self) -> None:
        for queue in (self._small, self._main, self._ghosts):
            queue.clear()
        self._reads.clear()

    def sizes(self) -> dict[str, int]:
        return {"small": len(self._small), "main": len(self._main), "ghost": len(self._ghosts)}
