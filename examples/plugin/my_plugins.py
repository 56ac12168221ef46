"""A policy and a tier for kvloft, as an example."""

from collections.abc import Sequence, Set

from kvloft.keys import Namespace
from kvloft.policies.base import Offer, Policy
from kvloft.request import Key, Request
from kvloft.tiers.memory import MemoryTier


class MRU(Policy):
    """Evicts what was used last: right for loops that are longer than the cache, wrong for nearly everything else."""

    name = "mru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order: dict[Key, None] = {}

    def admit(self, offer: Offer) -> None:
        self._order.update(dict.fromkeys(offer.keys))

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for key in chain:  # the tail is then the last used, and leaves before its head
            del self._order[key]
            self._order[key] = None

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims: list[Key] = []
        for key in reversed(self._order):
            if len(victims) == n:
                break
            if key not in keep:
                victims.append(key)
        self.forget(victims)
        self.evictions["mru"] += n
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._order[key]

    def clear(self) -> None:
        self._order.clear()

    def sizes(self) -> dict[str, int]:
        return {"mru": len(self._order)}


class ShelfTier(MemoryTier):
    """kvloft's tier in memory, with room for so many blocks."""

    def __init__(self, block_bytes: int, namespace: Namespace, blocks: int) -> None:
        super().__init__(capacity_bytes=block_bytes * blocks)
