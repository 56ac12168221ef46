"""LIRS, after Jiang and Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve Buffer
Cache Performance", SIGMETRICS 2002.

Blocks with a short distance between their last two uses (LIR) own most of the cache; the others (HIR) pass through a small
queue. The stack orders LIR blocks and recently used HIR blocks, evicted ones included, by recency; a HIR block used again
while on the stack has the shorter distance, and changes roles with the LIR block at the bottom.

Deviations: evicted HIR blocks on the stack are bounded; when the queue has no candidate left, LIR blocks go, oldest first;
blocks stored by a request take their place at its end, tail first.
"""

from collections import OrderedDict
from collections.abc import Sequence, Set

from kvloft.policies.base import Offer, Policy
from kvloft.policies.order import Queue, oldest, trim
from kvloft.request import Key, Request


class LIRS(Policy):
    """Evicts from the queue of HIR blocks, oldest first."""

    name = "lirs"
    HIR = 0.05
    """Share of the capacity for HIR blocks. The paper's 1 % is less than one request's blocks in small caches."""
    GHOSTS = 8
    """Evicted blocks that may stay on the stack, in capacities."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._limit = capacity - max(1, int(self.HIR * capacity))
        """LIR blocks that there may be."""
        self._stack: Queue = OrderedDict()
        self._lir: set[Key] = set()
        self._queue: Queue = OrderedDict()
        self._ghosts: Queue = OrderedDict()
        self._back: dict[Key, bool] = {}
        """Residents that were ghosts when their slot was reserved, in that order; True once their bytes have arrived.
        Their promotion waits for the next eviction, so that the order of completions does not matter."""

    def admit(self, offer: Offer) -> None:
        for key in offer.keys:
            if key in self._ghosts:
                self._back[key] = False
            elif len(self._lir) < self._limit:
                self._lir.add(key)
                self._stack[key] = None
                continue
            else:
                self._stack[key] = None
            self._queue[key] = None

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        for key in keys:
            if key in self._back:
                self._back[key] = True
                self._ghosts.pop(key, None)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in self._back:
                continue
            if key not in stored:
                self._use(key)
                continue
            if key in self._stack:
                self._stack.move_to_end(key)
            if key in self._queue:
                self._queue.move_to_end(key)
        self._prune()

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        self._promote()
        victims = oldest(self._queue, n, keep)
        for key in victims:
            del self._queue[key]
            if key in self._stack:
                self._ghosts[key] = None
        lir = oldest(filter(self._lir.__contains__, self._stack), n - len(victims), keep)
        for key in lir:
            self._lir.remove(key)
            del self._stack[key]
        spare = {*offer.keys, *self._back}
        for key in trim(self._ghosts, self.GHOSTS * self.capacity, spare):
            del self._stack[key]
        self._prune(spare)
        self.evictions["hir"] += len(victims)
        self.evictions["lir"] += len(lir)
        return victims + lir

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._back.pop(key, None)
            if self._queue.pop(key, self) is self:
                self._lir.remove(key)
            if key in self._stack and key not in self._ghosts:
                del self._stack[key]
        self._prune()

    def clear(self) -> None:
        for queue in (self._stack, self._queue, self._ghosts):
            queue.clear()
        self._lir.clear()
        self._back.clear()

    def sizes(self) -> dict[str, int]:
        return {"lir": len(self._lir), "hir": len(self._queue), "ghost": len(self._ghosts)}

    def _promote(self) -> None:
        """Blocks that came back while still on the stack are LIR now."""
        for key in reversed([key for key, arrived in self._back.items() if arrived]):
            del self._back[key]
            self._use(key)

    def _use(self, key: Key) -> None:
        """One use of a resident block after its first."""
        if key in self._lir:
            self._stack.move_to_end(key)
        elif key in self._stack or len(self._lir) < self._limit:
            del self._queue[key]
            self._lir.add(key)
            self._stack[key] = None
            self._stack.move_to_end(key)
            self._prune()
            if len(self._lir) > self._limit:
                bottom, _ = self._stack.popitem(last=False)
                self._lir.remove(bottom)
                self._queue[bottom] = None
        else:
            self._stack[key] = None
            self._queue.move_to_end(key)
        self._prune()

    def _prune(self, spare: Set[Key] = frozenset()) -> None:
        """The bottom of the stack is a LIR block; what lies below the lowest one is forgotten."""
        while self._stack:
            bottom = next(iter(self._stack))
            if bottom in self._lir or bottom in spare:
                return
            del self._stack[bottom]
            self._ghosts.pop(bottom, None)
