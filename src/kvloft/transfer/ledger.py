"""Slots that hold no resident any more, while somebody may still read or write them."""

from collections import Counter
from collections.abc import Iterable

from kvloft.pool import BlockPool


class SlotLedger:
    """Who still uses slots that are out of use. A slot comes back to the pool when the last of its users lets go of it:
    a tier that was given up or overtaken by a reset, the engine's worker, or both."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._users: Counter[int] = Counter()

    def __contains__(self, slot: int) -> bool:
        return slot in self._users

    def add(self, slots: Iterable[int]) -> None:
        """One more uses each of these slots; named twice, two more."""
        self._users.update(slots)

    def let_go(self, slots: Iterable[int]) -> None:
        """One of those who use these slots does so no more."""
        for slot in slots:
            self._users[slot] -= 1
            if not self._users[slot]:
                del self._users[slot]
                self._pool.reclaim([slot])
