"""Slots: indices into the host arena, handed out and taken back."""

from collections.abc import Collection, Iterable


class SlotAllocator:
    """Hands out the slots 0 .. capacity-1. Fresh ones in ascending order, so that neighbours in a chain are neighbours in
    memory; then the ones given back last, so that a store reuses what was just evicted for it, again in order."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._fresh = 0
        self._returned: list[int] = []

    def __len__(self) -> int:
        """Slots that are free."""
        return self._capacity - self._fresh + len(self._returned)

    def take(self, n: int) -> list[int]:
        """n free slots; the caller knows that there are as many."""
        reused = min(n, len(self._returned))
        slots = self._returned[len(self._returned) - reused :]
        del self._returned[len(self._returned) - reused :]
        first, self._fresh = self._fresh, self._fresh + n - reused
        slots.extend(range(first, self._fresh))
        return slots

    def give_back(self, slots: Iterable[int]) -> None:
        self._returned.extend(slots)

    def clear(self, but: Collection[int] = ()) -> None:
        """Every slot is free again, but those."""
        self._fresh = self._capacity if but else 0
        self._returned = [slot for slot in reversed(range(self._fresh)) if slot not in but]
