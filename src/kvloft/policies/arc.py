"""Adaptive replacement cache, after Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.

T1 holds blocks used once, T2 blocks used again; the ghost lists B1 and B2 remember the keys lately evicted from each. A
block that comes back from B1 says that T1 was too small, one from B2 that T2 was: the target size of T1 moves that way.

Deviations from the paper, which knows neither batches, nor pins, nor stores in flight:

- A store of many blocks is one step: the target first moves by all its ghost hits, then one pass selects the victims. Each
  choice sees T1 as shrunk by the choices before it, not as grown by the blocks of the batch itself.
- When the preferred list has no candidate left (empty, pinned, protected, used up), the pass goes on with the other, so T1
  may shrink below its target. The paper's lists never run out.
- Blocks take their place when their slot is reserved and teach when their bytes arrive (`commit`), in the order in which
  they were stored, whatever the order in which they arrive. What stores in flight will teach is already counted when
  choosing victims, but a store that fails leaves target and ghosts as they were.
- Blocks stored and read by a request become the most recent at its end, tail first, so the head of a chain outlives its
  tail. A block that the request stored itself is not thereby used twice. While the request runs, of its blocks in a list
  those nearest to its tail leave first.
"""

from collections.abc import Collection, Sequence, Set
from itertools import filterfalse
from math import floor

from kvloft._table import Queues
from kvloft.policies.base import Offer, Policy
from kvloft.policies.lessons import Lessons
from kvloft.policies.open_chains import OpenChains
from kvloft.request import Key, Request

T1, T2, B1, B2 = range(4)
_LISTS = {"t1": T1, "t2": T2, "ghost_b1": B1, "ghost_b2": B2}


class ARC(Policy):
    """ARC as in the paper: a ghost hit re-enters T2; |T1| + |B1| is at most the capacity, all four lists at most twice."""

    name = "arc"
    minds_running = True
    ghosts = 1
    """B1 and B2 together, at most, in capacities."""
    ghosts_enter_t2 = True
    tails_first = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._lists = Queues((1 + self.ghosts) * capacity + capacity // 16, queues=4)
        """With some room beyond residents and ghosts, for gaps."""
        self._gaps: dict[Key, int] = {}
        """Ghosts on their way back: where they were in B1 or B2, and will be again if their stores fail."""
        self._running = OpenChains()
        self._lessons = Lessons(capacity)
        """What ghost hits teach."""
        self._ahead: tuple[Offer | None, dict[Key, float]] = (None, {})
        """What the offer that evicts will teach once it is admitted."""

    @property
    def target(self) -> float:
        """Wanted size of T1 in blocks, 0 to capacity; what has been committed, without what is in flight."""
        return self._lessons.target

    @target.setter
    def target(self, target: float) -> None:
        self._lessons.target = target

    # What the two variants decide differently.

    def _teach(self, offer: Offer) -> dict[Key, float]:
        """By how much each ghost hit of the offer, in turn, moves the target."""
        b1, b2 = self._lists.size(B1), self._lists.size(B2)
        lessons: dict[Key, float] = {}
        hits = self._lists.present(offer.keys)
        of_b1 = {*self._lists.present(hits, B1)}
        for key in hits:
            if key in of_b1:
                lessons[key] = b2 / b1 if b2 > b1 else 1.0
                b1 -= 1
            else:
                lessons[key] = -b1 / b2 if b1 > b2 else -1.0
                b2 -= 1
        return lessons

    def _choices(self, target: float, newcomers: Sequence[Key], hits: Collection[Key]) -> tuple[int, int]:
        """Whose turn it is to make room for each of the newcomers, of which some are ghosts: so often that of T1, then so
        often that of T2, then once that of T1 again, then that of T2."""
        size = self._lists.size(T1)
        t1 = min(max(0, size - floor(target)), len(newcomers))
        rest = newcomers[t1:]
        returning = self._lists.present(rest, B2) if hits and size - t1 == target else ()
        return t1, rest.index(returning[0]) if returning else len(rest)

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        """Evicting moves keys from T to B and never adds to |T1| + |B1| or |T2| + |B2|."""

    def _trim_after_commit(self) -> None:
        self._drop_oldest(B1, self._lists.size(T1) + self._lists.size(B1) - self.capacity)
        self._drop_oldest(B2, len(self._lists) - 2 * self.capacity)

    # The contract.

    def admit(self, offer: Offer) -> None:
        moves = self._moves(offer)
        self._ahead = (None, {})
        keys = offer.keys
        if self.tails_first:
            self._running.admit(offer)
            keys = keys[::-1]
        if moves:
            self._lessons.add(moves)
            returning = self._lists.present(filter(moves.__contains__, keys))
            self._gaps.update(zip(returning, self._lists.lift(returning, T2 if self.ghosts_enter_t2 else T1), strict=True))
        self._lists.add(keys, T1)
        if moves and not self.ghosts_enter_t2:
            self._lists.touch(keys)

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        returned = self._lessons.settle(keys, success=True)
        if returned:
            self._lists.close(map(self._gaps.pop, filter(self._gaps.__contains__, returned)))
        self._trim_after_commit()

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._running.finish(request.id)
        used = chain[::-1]
        if len(stored) < len(used):
            self._lists.move(filterfalse(stored.__contains__, used) if stored else used, T2)
        if stored:
            self._lists.touch(used)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        moves = self._moves(offer)
        t1, t2 = self._choices(self._lessons.expected(moves.values()), offer.keys[-n:], moves)
        wanted = t1 + (t1 + t2 < n)
        oldest = self._lists.oldest
        victims1 = oldest(wanted, keep, T1)
        victims2 = oldest(n - len(victims1), keep, T2)
        if len(victims1) + len(victims2) < n:
            victims1 = oldest(n - len(victims2), keep, T1)
        victims1 = self._running.tails_first(victims1, self._lists, keep, T1)
        victims2 = self._running.tails_first(victims2, self._lists, keep, T2)
        self._retire(victims1, B1)
        self._retire(victims2, B2)
        # Where a list ran out, its turns went to the other; the order of the turns is the same.
        victims = [*victims1[:t1], *victims2[:t2], *victims1[t1 : t1 + 1], *victims2[t2:], *victims1[t1 + 1 :]]
        self._trim_after_evict(offer, victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._lessons.settle(keys, success=False)
        self._running.forget(keys)
        returned = {*filter(self._gaps.__contains__, keys)}
        self._lists.put_back(returned, map(self._gaps.pop, returned))
        self._lists.remove(filterfalse(returned.__contains__, keys))

    def clear(self) -> None:
        for kept in (self._lists, self._gaps, self._running, self._lessons):
            kept.clear()
        self._ahead = (None, {})

    def sizes(self) -> dict[str, int]:
        return {name: self._lists.size(queue) for name, queue in _LISTS.items()}

    # Shared steps.

    def _moves(self, offer: Offer) -> dict[Key, float]:
        """What the offer will teach, by the ghost lists as they were before it evicted."""
        if self._ahead[0] is not offer:
            moves = self._teach(offer)
            moves.update((key, 0.0) for key in offer.repeat if key in moves)
            self._ahead = (offer, moves)
        return self._ahead[1]

    def _retire(self, victims: Sequence[Key], queue: int) -> None:
        self._running.forget(victims)
        self._lists.move(victims, queue)
        self.evictions["t1" if queue == B1 else "t2"] += len(victims)

    def _drop_oldest(self, queue: int, n: int, spare: Set[Key] = frozenset()) -> None:
        """Drop the n oldest ghosts that are not in `spare`, as far as there are any."""
        if n > 0:
            self._lists.remove(self._lists.oldest(n, spare, queue))


class ARCvLLM(ARC):
    """ARC as vLLM 0.32 decides it. It differs from `ARC` in this:

    - A ghost hit re-enters T1; only a later reuse moves it to T2.
    - T1 gives up blocks while it is at or above the whole part of the target; the paper, above the target, or at it for a
      block that comes back from B2.
    - The ghost hits of one store all move the target by what the sizes of B1 and B2 were at its start, tail first.
    - B1 and B2 may each hold as many keys as the cache, whatever T1 and T2 hold.
    - Of a running request the blocks stored first leave first.

    Where vLLM moves its target on stores that are then refused or fail, this does not.
    """

    name = "arc-vllm"
    ghosts = 2
    ghosts_enter_t2 = False
    tails_first = False

    def _teach(self, offer: Offer) -> dict[Key, float]:
        b1, b2 = self._lists.size(B1), self._lists.size(B2)
        hits = self._lists.present(offer.keys[::-1])
        of_b1 = {*self._lists.present(hits, B1)}
        return {key: max(1.0, b2 / b1) if key in of_b1 else -max(1.0, b1 / b2) for key in hits}

    def _choices(self, target: float, newcomers: Sequence[Key], hits: Collection[Key]) -> tuple[int, int]:
        t1 = min(max(0, self._lists.size(T1) - int(target) + 1), len(newcomers))
        return t1, len(newcomers) - t1

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        for queue in (B1, B2):
            surplus = self._lists.size(queue) - self.capacity
            if surplus > 0:
                self._drop_oldest(queue, surplus, {*offer.keys, *victims})

    def _trim_after_commit(self) -> None:
        """vLLM trims when it evicts."""
