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

from collections.abc import Collection, Iterable, Sequence, Set
from itertools import filterfalse
from math import floor

from kvloft._table import Queues
from kvloft.policies.base import Offer, Policy
from kvloft.policies.lessons import Lessons
from kvloft.policies.open_chains import OpenChains
from kvloft.request import Key, Request

ONCE, AGAIN = 0, 1
"""T1 or T2 among the residents, B1 or B2 among the ghosts."""


class ARC(Policy):
    """ARC as in the paper: a ghost hit re-enters T2; |T1| + |B1| is at most the capacity, all four lists at most twice."""

    name = "arc"
    minds_running = True
    ghosts_enter_t2 = True
    tails_first = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._residents = Queues(capacity, queues=2)
        self._ghosts = Queues(capacity + capacity // 16, queues=2)
        """With some room beyond the capacity, for those on their way back."""
        self._running = OpenChains()
        self._lessons = Lessons(capacity)
        """What ghost hits teach. The ghosts stay in B1 or B2 until their stores commit."""
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
        b1, b2 = self._live(ONCE), self._live(AGAIN)
        lessons: dict[Key, float] = {}
        hits = self._ghosts.present(offer.keys)
        of_b1 = {*self._ghosts.present(hits, ONCE)}
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
        size = self._residents.size(ONCE)
        t1 = min(max(0, size - floor(target)), len(newcomers))
        rest = newcomers[t1:]
        returning = self._ghosts.present(rest, AGAIN) if hits and size - t1 == target else ()
        return t1, rest.index(returning[0]) if returning else len(rest)

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        """Evicting moves keys from T to B and never adds to |T1| + |B1| or |T2| + |B2|."""

    def _trim_after_commit(self) -> None:
        self._drop_oldest(ONCE, self._residents.size(ONCE) + self._live(ONCE) - self.capacity)
        self._drop_oldest(AGAIN, len(self._residents) + self._live(ONCE) + self._live(AGAIN) - 2 * self.capacity)

    # The contract.

    def admit(self, offer: Offer) -> None:
        moves = self._moves(offer)
        self._lessons.add(moves)
        self._ahead = (None, {})
        keys = offer.keys
        if self.tails_first:
            self._running.admit(offer)
            keys = keys[::-1]
        if moves and self.ghosts_enter_t2:
            self._residents.add(filter(moves.__contains__, keys), AGAIN)
        self._residents.add(keys, ONCE)

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        returned = self._lessons.settle(keys, success=True)
        self._ghosts.remove(self._ghosts.present(returned))
        self._trim_after_commit()

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._running.finish(request.id)
        used = chain[::-1]
        if len(stored) < len(used):
            again = self._residents.present(used, ONCE)
            self._residents.move(filterfalse(stored.__contains__, again) if stored else again, AGAIN)
        self._residents.touch(used)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        moves = self._moves(offer)
        t1, t2 = self._choices(self._lessons.expected(moves.values()), offer.keys[-n:], moves)
        wanted = t1 + (t1 + t2 < n)
        oldest = self._residents.oldest
        victims1 = oldest(wanted, keep, ONCE)
        victims2 = oldest(n - len(victims1), keep, AGAIN)
        if len(victims1) + len(victims2) < n:
            victims1 = oldest(n - len(victims2), keep, ONCE)
        victims1 = self._running.tails_first(victims1, self._residents, keep, ONCE)
        victims2 = self._running.tails_first(victims2, self._residents, keep, AGAIN)
        self._retire(victims1, ONCE)
        self._retire(victims2, AGAIN)
        # Where a list ran out, its turns went to the other; the order of the turns is the same.
        victims = [*victims1[:t1], *victims2[:t2], *victims1[t1 : t1 + 1], *victims2[t2:], *victims1[t1 + 1 :]]
        self._trim_after_evict(offer, victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._lessons.settle(keys, success=False)
        self._running.forget(keys)
        self._residents.remove(keys)

    def clear(self) -> None:
        for kept in (self._residents, self._ghosts, self._running, self._lessons):
            kept.clear()
        self._ahead = (None, {})

    def sizes(self) -> dict[str, int]:
        t, b = self._residents.size, self._ghosts.size
        return {"t1": t(ONCE), "t2": t(AGAIN), "ghost_b1": b(ONCE), "ghost_b2": b(AGAIN)}

    # Shared steps.

    def _live(self, queue: int) -> int:
        """Size of a ghost list without the keys that are on their way back."""
        return self._ghosts.size(queue) - len(self._ghosts.present(self._lessons.keys(), queue))

    def _moves(self, offer: Offer) -> dict[Key, float]:
        """What the offer will teach, by the ghost lists as they were before it evicted."""
        if self._ahead[0] is not offer:
            moves = self._teach(offer)
            moves.update((key, 0.0) for key in offer.repeat if key in moves)
            self._ahead = (offer, moves)
        return self._ahead[1]

    def _retire(self, victims: Sequence[Key], queue: int) -> None:
        self._running.forget(victims)
        self._residents.remove(victims)
        self._ghosts.add(victims, queue)
        self.evictions[("t1", "t2")[queue]] += len(victims)

    def _drop_oldest(self, queue: int, n: int, spare: Iterable[Key] = ()) -> None:
        """Drop the n oldest ghosts that are neither on their way back nor in `spare`, as far as there are any."""
        if n > 0:
            self._ghosts.remove(self._ghosts.oldest(n, {*self._lessons.keys(), *spare}, queue))


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
    ghosts_enter_t2 = False
    tails_first = False

    def _teach(self, offer: Offer) -> dict[Key, float]:
        b1, b2 = self._live(ONCE), self._live(AGAIN)
        hits = self._ghosts.present(offer.keys[::-1])
        of_b1 = {*self._ghosts.present(hits, ONCE)}
        return {key: max(1.0, b2 / b1) if key in of_b1 else -max(1.0, b1 / b2) for key in hits}

    def _choices(self, target: float, newcomers: Sequence[Key], hits: Collection[Key]) -> tuple[int, int]:
        t1 = min(max(0, self._residents.size(ONCE) - int(target) + 1), len(newcomers))
        return t1, len(newcomers) - t1

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        for queue in (ONCE, AGAIN):
            self._drop_oldest(queue, self._live(queue) - self.capacity, (*offer.keys, *victims))

    def _trim_after_commit(self) -> None:
        """vLLM trims when it evicts."""
