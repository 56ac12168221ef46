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

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import filterfalse
from math import floor

from kvloft.policies.base import Offer, Policy
from kvloft.policies.lessons import Lessons
from kvloft.policies.open_chains import OpenChains
from kvloft.policies.queue import Queue
from kvloft.request import Key, Request


class ARC(Policy):
    """ARC as in the paper: a ghost hit re-enters T2; |T1| + |B1| is at most the capacity, all four lists at most twice."""

    name = "arc"
    ghosts_enter_t2 = True
    tails_first = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._t1, self._t2 = Queue(), Queue()
        self._b1, self._b2 = Queue(), Queue()
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
        b1, b2 = self._live(self._b1), self._live(self._b2)
        lessons: dict[Key, float] = {}
        for key, of_b1 in self._ghost_hits(offer.keys):
            if of_b1:
                lessons[key] = max(1.0, b2 / b1)
                b1 -= 1
            else:
                lessons[key] = -max(1.0, b1 / b2)
                b2 -= 1
        return lessons

    def _choices(self, target: float, newcomers: Sequence[Key]) -> tuple[int, int]:
        """Whose turn it is to make room for each of the newcomers: so often that of T1, then so often that of T2, then
        once that of T1 again, then that of T2."""
        t1 = min(max(0, len(self._t1) - floor(target)), len(newcomers))
        t2 = len(newcomers) - t1
        if len(self._t1) - t1 == target:
            t2 = next((at for at, key in enumerate(newcomers[t1:]) if key in self._b2), t2)
        return t1, t2

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        """Evicting moves keys from T to B and never adds to |T1| + |B1| or |T2| + |B2|."""

    def _trim_after_commit(self) -> None:
        self._drop_oldest(self._b1, len(self._t1) + self._live(self._b1) - self.capacity)
        total = len(self._t1) + len(self._t2) + self._live(self._b1) + self._live(self._b2)
        self._drop_oldest(self._b2, total - 2 * self.capacity)

    # The contract.

    def admit(self, offer: Offer) -> None:
        moves = self._moves(offer)
        self._lessons.add(moves)
        self._ahead = (None, {})
        enters_t2 = moves if self.ghosts_enter_t2 else {}
        keys = offer.keys
        if self.tails_first:
            self._running.admit(offer)
            keys = keys[::-1]
        self._t1.add(filterfalse(enters_t2.__contains__, keys))
        self._t2.add(filter(enters_t2.__contains__, keys))

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        returned = self._lessons.settle(keys, success=True)
        for ghosts in (self._b1, self._b2):
            ghosts.remove(list(filter(ghosts.holds, returned)))
        self._trim_after_commit()

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._running.finish(request.id)
        used = chain[::-1]
        in_t1 = list(filter(self._t1.holds, used))
        again = list(filterfalse(stored.__contains__, in_t1))
        self._t1.touch(filter(stored.__contains__, in_t1))
        self._t1.remove(again)
        self._t2.add(again)
        self._t2.touch(filter(self._t2.holds, used))

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        target = self._lessons.expected(self._moves(offer).values())
        t1, t2 = self._choices(target, offer.keys[-n:])
        wanted = t1 + (t1 + t2 < n)
        victims1 = self._t1.oldest(wanted, keep)
        victims2 = self._t2.oldest(n - len(victims1), keep)
        if len(victims1) + len(victims2) < n:
            victims1 = self._t1.oldest(n - len(victims2), keep)
        victims1 = self._running.tails_first(victims1, self._t1, keep)
        victims2 = self._running.tails_first(victims2, self._t2, keep)
        self._retire(victims1, self._t1, self._b1, "t1")
        self._retire(victims2, self._t2, self._b2, "t2")
        # Where a list ran out, its turns went to the other; the order of the turns is the same.
        victims = [*victims1[:t1], *victims2[:t2], *victims1[t1 : t1 + 1], *victims2[t2:], *victims1[t1 + 1 :]]
        self._trim_after_evict(offer, victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._lessons.settle(keys, success=False)
        self._running.forget(keys)
        for entries in (self._t1, self._t2):
            entries.remove(list(filter(entries.holds, keys)))

    def clear(self) -> None:
        for entries in (self._t1, self._t2, self._b1, self._b2, self._running, self._lessons):
            entries.clear()
        self._ahead = (None, {})

    def sizes(self) -> dict[str, int]:
        return {"t1": len(self._t1), "t2": len(self._t2), "ghost_b1": len(self._b1), "ghost_b2": len(self._b2)}

    # Shared steps.

    def _live(self, ghosts: Queue) -> int:
        """Size of a ghost list without the keys that are on their way back."""
        return len(ghosts) - sum(map(ghosts.holds, self._lessons.keys()))

    def _ghost_hits(self, keys: Sequence[Key]) -> Iterator[tuple[Key, bool]]:
        """Those of `keys` that are ghosts, and whether they are in B1."""
        in_b1 = dict.fromkeys(filter(self._b1.holds, keys), True)
        hits = in_b1 | dict.fromkeys(filter(self._b2.holds, keys), False)
        return zip(filter(hits.__contains__, keys), map(hits.__getitem__, filter(hits.__contains__, keys)), strict=True)

    def _moves(self, offer: Offer) -> dict[Key, float]:
        """What the offer will teach, by the ghost lists as they were before it evicted."""
        if self._ahead[0] is not offer:
            moves = self._teach(offer)
            moves.update((key, 0.0) for key in offer.repeat if key in moves)
            self._ahead = (offer, moves)
        return self._ahead[1]

    def _retire(self, victims: Sequence[Key], source: Queue, ghosts: Queue, name: str) -> None:
        self._running.forget(victims)
        source.remove(victims)
        ghosts.add(victims)
        self.evictions[name] += len(victims)

    def _drop_oldest(self, ghosts: Queue, n: int, spare: Iterable[Key] = ()) -> None:
        """Drop the n oldest ghosts that are neither on their way back nor in `spare`, as far as there are any."""
        if n > 0:
            ghosts.remove(ghosts.oldest(n, {*self._lessons.keys(), *spare}))


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
        b1, b2 = self._live(self._b1), self._live(self._b2)
        hits = self._ghost_hits(offer.keys[::-1])
        return {key: max(1.0, b2 / b1) if of_b1 else -max(1.0, b1 / b2) for key, of_b1 in hits}

    def _choices(self, target: float, newcomers: Sequence[Key]) -> tuple[int, int]:
        t1 = min(max(0, len(self._t1) - int(target) + 1), len(newcomers))
        return t1, len(newcomers) - t1

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        for ghosts in (self._b1, self._b2):
            self._drop_oldest(ghosts, self._live(ghosts) - self.capacity, (*offer.keys, *victims))

    def _trim_after_commit(self) -> None:
        """vLLM trims when it evicts."""
