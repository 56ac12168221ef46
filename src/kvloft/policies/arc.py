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
  tail. A block that the request stored itself is not thereby used twice.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from itertools import filterfalse, islice

from kvloft.policies.base import Offer, Policy
from kvloft.request import Key, Request

_List = OrderedDict[Key, None]
_NONE = object()

PATIENCE = 1000
"""How many lessons may wait for an earlier one in flight; then it is given up, so that a store that never ends costs
bounded memory."""


@dataclass(slots=True, eq=False)
class _Lesson:
    """What one ghost hit teaches."""

    move: float
    """By how much it moves the target."""
    settled: bool = False
    """Whether its store has ended."""


class ARC(Policy):
    """ARC as in the paper: a ghost hit re-enters T2; |T1| + |B1| is at most the capacity, all four lists at most twice."""

    name = "arc"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0
        """Wanted size of T1 in blocks, 0 to capacity; what has been committed, without what is in flight."""
        self._t1: _List = OrderedDict()
        self._t2: _List = OrderedDict()
        self._b1: _List = OrderedDict()
        self._b2: _List = OrderedDict()
        self._lessons: dict[Key, _Lesson] = {}
        """Ghost hits in flight. They stay in B1 or B2 until they commit."""
        self._queue: deque[_Lesson] = deque()
        """Lessons in the order of their stores, from the first one in flight on."""
        self._ahead: tuple[Offer | None, dict[Key, float]] = (None, {})
        """What the offer that evicts will teach once it is admitted."""

    # What the two variants decide differently.

    def _teach(self, offer: Offer) -> dict[Key, float]:
        """By how much each ghost hit of the offer, in turn, moves the target."""
        b1, b2 = self._live(self._b1), self._live(self._b2)
        lessons: dict[Key, float] = {}
        for key in offer.keys:
            if key in self._b1:
                lessons[key] = max(1.0, b2 / b1)
                b1 -= 1
            elif key in self._b2:
                lessons[key] = -max(1.0, b1 / b2)
                b2 -= 1
        return lessons

    def _prefers_t1(self, t1: int, target: float, newcomer: Key) -> bool:
        """Whether the next victim should come from T1, which the pass has shrunk to `t1`, to make room for `newcomer`."""
        return t1 > target or (t1 == target and newcomer in self._b2)

    def _enters_t2(self, key: Key) -> bool:
        return key in self._b1 or key in self._b2

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        """Evicting moves keys from T to B and never adds to |T1| + |B1| or |T2| + |B2|."""

    def _trim_after_commit(self) -> None:
        self._drop_oldest(self._b1, len(self._t1) + self._live(self._b1) - self.capacity)
        total = len(self._t1) + len(self._t2) + self._live(self._b1) + self._live(self._b2)
        self._drop_oldest(self._b2, total - 2 * self.capacity)

    # The contract.

    def admit(self, offer: Offer) -> None:
        for key, move in self._moves(offer).items():
            self._lessons[key] = lesson = _Lesson(move)
            self._queue.append(lesson)
        self._ahead = (None, {})
        for key in offer.keys:
            (self._t2 if self._enters_t2(key) else self._t1)[key] = None

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        for key in keys:
            if lesson := self._lessons.pop(key, None):
                lesson.settled = True
                self._b1.pop(key, None)
                self._b2.pop(key, None)
        self._learn()
        self._trim_after_commit()

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in reversed(chain):
            if key in self._t2:
                self._t2.move_to_end(key)
            elif key in stored:
                self._t1.move_to_end(key)
            else:
                del self._t1[key]
                self._t2[key] = None

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        target = self._expected_target(offer)
        newcomers = offer.keys[-n:]
        candidates1 = filterfalse(keep.__contains__, self._t1)
        candidates2 = filterfalse(keep.__contains__, self._t2)
        first1, first2 = next(candidates1, _NONE), next(candidates2, _NONE)
        victims1: list[Key] = []
        victims2: list[Key] = []
        victims: list[Key] = []
        for newcomer in newcomers:
            wants1 = self._prefers_t1(len(self._t1) - len(victims1), target, newcomer)
            if first2 is _NONE or (wants1 and first1 is not _NONE):
                victims1.append(first1)
                victims.append(first1)
                first1 = next(candidates1, _NONE)
            else:
                victims2.append(first2)
                victims.append(first2)
                first2 = next(candidates2, _NONE)
        self._retire(victims1, self._t1, self._b1, "t1")
        self._retire(victims2, self._t2, self._b2, "t2")
        self._trim_after_evict(offer, victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if lesson := self._lessons.pop(key, None):
                lesson.move, lesson.settled = 0.0, True
            if key in self._t1:
                del self._t1[key]
            else:
                del self._t2[key]
        self._learn()

    def clear(self) -> None:
        for entries in (self._t1, self._t2, self._b1, self._b2, self._lessons, self._queue):
            entries.clear()
        self._ahead = (None, {})
        self.target = 0.0

    def sizes(self) -> dict[str, int]:
        return {"t1": len(self._t1), "t2": len(self._t2), "ghost_b1": len(self._b1), "ghost_b2": len(self._b2)}

    # Shared steps.

    def _live(self, ghosts: _List) -> int:
        """Size of a ghost list without the keys that are on their way back."""
        return len(ghosts) - sum(map(ghosts.__contains__, self._lessons))

    def _moves(self, offer: Offer) -> dict[Key, float]:
        """What the offer will teach, by the ghost lists as they were before it evicted."""
        if self._ahead[0] is not offer:
            moves = self._teach(offer)
            moves.update((key, 0.0) for key in offer.repeat if key in moves)
            self._ahead = (offer, moves)
        return self._ahead[1]

    def _moved(self, target: float, move: float) -> float:
        return min(max(target + move, 0.0), float(self.capacity))

    def _learn(self) -> None:
        """Move the target by the lessons that no store in flight precedes."""
        queue = self._queue
        while queue and (queue[0].settled or len(queue) > PATIENCE + self.capacity):
            lesson = queue.popleft()
            if lesson.settled:
                self.target = self._moved(self.target, lesson.move)

    def _expected_target(self, offer: Offer) -> float:
        """The target once all stores in flight and this one have committed."""
        target = self.target
        for lesson in self._queue:
            target = self._moved(target, lesson.move)
        for move in self._moves(offer).values():
            target = self._moved(target, move)
        return target

    def _retire(self, victims: Sequence[Key], source: _List, ghosts: _List, name: str) -> None:
        for key in victims:
            del source[key]
            ghosts[key] = None
        self.evictions[name] += len(victims)

    def _drop_oldest(self, ghosts: _List, n: int, spare: Collection[Key] = ()) -> None:
        """Drop the n oldest ghosts that are neither on their way back nor in `spare`, as far as there are any."""
        if n > 0:
            stays = {*self._lessons, *spare}
            for key in list(islice(filterfalse(stays.__contains__, ghosts), n)):
                del ghosts[key]


class ARCvLLM(ARC):
    """ARC as vLLM 0.32 decides it. It differs from `ARC` in this:

    - A ghost hit re-enters T1; only a later reuse moves it to T2.
    - T1 gives up blocks while it is at or above the whole part of the target; the paper, above the target, or at it for a
      block that comes back from B2.
    - The ghost hits of one store all move the target by what the sizes of B1 and B2 were at its start, tail first.
    - B1 and B2 may each hold as many keys as the cache, whatever T1 and T2 hold.

    Where vLLM moves its target on stores that are then refused or fail, this does not.
    """

    name = "arc-vllm"

    def _teach(self, offer: Offer) -> dict[Key, float]:
        b1, b2 = self._live(self._b1), self._live(self._b2)
        lessons: dict[Key, float] = {}
        for key in reversed(offer.keys):
            if key in self._b1:
                lessons[key] = max(1.0, b2 / b1)
            elif key in self._b2:
                lessons[key] = -max(1.0, b1 / b2)
        return lessons

    def _prefers_t1(self, t1: int, target: float, newcomer: Key) -> bool:
        return t1 >= int(target)

    def _enters_t2(self, key: Key) -> bool:
        return False

    def _trim_after_evict(self, offer: Offer, victims: Sequence[Key]) -> None:
        for ghosts in (self._b1, self._b2):
            self._drop_oldest(ghosts, self._live(ghosts) - self.capacity, (*offer.keys, *victims))

    def _trim_after_commit(self) -> None:
        """vLLM trims when it evicts."""
