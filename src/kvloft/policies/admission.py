"""What a pool takes in, beside what a policy throws out.

A rule is given to the pool; without one, everything is stored that the policy finds worth it.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence, Set

from kvloft.errors import ConfigError
from kvloft.policies.base import Offer
from kvloft.request import Key, Request


class Admission(ABC):
    """Says which blocks a store may not push out. If it does not fit then, its head is stored, as far as it fits.

    A rule learns from `finish` what is used again.
    """

    @abstractmethod
    def shield(self, offer: Offer, need: int) -> Collection[Key]:
        """Blocks that must not leave for this offer. All stores of its request together would take `need` blocks from
        others."""

    @abstractmethod
    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        """See `Policy.finish`."""

    @abstractmethod
    def forget(self, keys: Sequence[Key]) -> None:
        """These blocks are gone."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""


class ScanGuard(Admission):
    """A request that stores much at once does not wipe what was used again and again.

    A store is a scan when its request, all its stores together, wants more than `SCAN` of the capacity from others. Shielded
    from scans are blocks that were read at least twice, for as long as fewer blocks were stored since than `LIFE` capacities
    a read; half of the capacity at most, those used last. Everything else is as the policy decides.

    Args:
        capacity: of the pool, in blocks.
    """

    SCAN = 0.125
    LIFE = 0.5
    SHARE = 0.5

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._stored = 0
        self._reads: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        """By block, in the order of last use: how often it was read, and how much had been stored by then."""

    def shield(self, offer: Offer, need: int) -> Collection[Key]:
        if need <= self.SCAN * self.capacity:
            return ()
        shielded: list[Key] = []
        for key in reversed(self._reads):
            reads, stored = self._reads[key]
            if len(shielded) >= self.SHARE * self.capacity:
                break
            if reads >= 2 and self._stored - stored < self.LIFE * self.capacity * reads:
                shielded.append(key)
        return shielded

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._stored += len(stored)
        for key in reversed(chain):
            if key not in stored:
                reads, _ = self._reads.pop(key, (0, 0))
                self._reads[key] = (reads + 1, self._stored)

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._reads.pop(key, None)

    def clear(self) -> None:
        self._stored = 0
        self._reads.clear()


ADMISSIONS: dict[str, Callable[[int], Admission] | None] = {"everything": None, "scan-guard": ScanGuard}
"""Rules by name, made for a capacity in blocks."""


def make_admission(name: str, capacity: int) -> Admission | None:
    """The rule of this name for a pool of so many blocks; None for the one that takes in everything.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in ADMISSIONS:
        raise ConfigError(f"admission: {name!r} is unknown; choose one of: {', '.join(ADMISSIONS)}")
    rule = ADMISSIONS[name]
    return rule(capacity) if rule else None
