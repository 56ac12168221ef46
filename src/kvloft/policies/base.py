"""The contract of a policy: which block leaves.

A policy orders blocks. It owns no bytes, no slots and no pins. The pool counts first and evicts second, so a policy needs
no plan and no rollback; it has to keep these laws, which `kvloft.testing.policies.PolicyLaws` proves for any policy:

1. If n residents outside `keep` exist, `evict(n, keep, offer)` returns exactly n distinct ones, whatever list they sit in.
2. One batch is one pass: evicting m blocks costs O(m + skipped); scans go on, they never restart.
3. Learning (ghost hits, targets) happens in `commit`, never before. A failed store leaves no trace: `forget` restores
   everything but the block itself. `evict` may look at the offer to decide, but must not learn from it.
4. What is read again counts once, in `finish`, tail to head, so that a prefix outlives its suffix.
5. Ghosts are bounded, and `sizes` counts them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence, Set
from typing import ClassVar, NamedTuple

from kvloft._table import distinct
from kvloft.errors import PolicyError
from kvloft.request import Key, Request


class Offer(NamedTuple):
    """A store that asks for room.

    Args:
        keys: the blocks to be stored, in chain order; none of them is resident. To `admit`, those that were accepted.
        request: whose blocks they are.
        offered: all blocks named in the call, in chain order: `keys` and what is resident already.
        parent: the block that the request named just before this call's first; None at the head of its chain.
        repeat: those of `keys` from which this request has taught the policy before; they must teach nothing again.
        declined: blocks that would have been behind `keys` but were not worth storing.
    """

    keys: Sequence[Key]
    request: Request
    offered: Sequence[Key] = ()
    parent: Key | None = None
    repeat: Collection[Key] = ()
    declined: Sequence[Key] = ()


class Policy(ABC):
    """Decides which resident block leaves. `capacity` is in blocks.

    A block's life: `admit` (its slot is reserved, its bytes are on the way), then `commit` (its bytes are there) or
    `forget` (they never came); `finish` at the end of each request that read or stored it; `evict`. Every key passed to
    `commit`, `forget` and `finish` is resident. A block between `admit` and `commit` is always in `keep`.
    """

    name: ClassVar[str]
    minds_running: ClassVar[bool] = False
    """Whether it sees to it itself that of a running request's blocks the tail leaves before the head, or means otherwise.
    For others `kvloft.policies.open_chains.TailsFirst` does."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evictions: Counter[str] = Counter()
        """Blocks evicted so far, by the list, queue or segment they sat in."""

    def accept(self, offer: Offer, need: int) -> int:
        """How many of `offer.keys`, from the first on, are worth storing if blocks must leave for it: `need` for all of
        them. Changes nothing that a refused store must not change."""
        return len(offer.keys)

    def protect(self, keep: set[Key]) -> set[Key]:
        """`keep`, and what cannot leave before these have left."""
        return keep

    @abstractmethod
    def admit(self, offer: Offer) -> None:
        """Let `offer.keys` take their place in the order. Teaches nothing."""

    def commit(self, keys: Sequence[Key], request: Request) -> None:  # noqa: B027
        """Learn from blocks whose bytes have arrived, in chain order."""

    @abstractmethod
    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        """Count one request's use of its blocks.

        Args:
            chain: what the request read again or stored and is still resident, head to tail; may be empty.
            stored: those of `chain` that the request only stored itself; the others are reuses.
            request: the request that ends.
        """

    @abstractmethod
    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        """Drop exactly n distinct residents, none in `keep`, and return them in the order of their going.

        The caller knows that n such residents exist, and that 0 < n <= len(offer.keys): the last n of them need the room.
        `keep` also holds all of `offer.offered`.
        """

    @abstractmethod
    def forget(self, keys: Sequence[Key]) -> None:
        """Drop blocks that leave for other reasons than eviction: a failed store, a dead medium."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, ghosts and what was learned included."""

    def residents(self) -> int:
        """Blocks that it could evict."""
        return sum(size for name, size in self.sizes().items() if not name.startswith("ghost"))

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Blocks by list, queue or segment. Names of ghost lists start with "ghost"."""


class Wrapper(Policy):
    """A policy around another one, under its name: what it does not decide itself, the other does."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.capacity)
        self.name = policy.name  # type: ignore[misc]
        self.policy = policy
        self.evictions = policy.evictions

    def accept(self, offer: Offer, need: int) -> int:
        return self.policy.accept(offer, need)

    def protect(self, keep: set[Key]) -> set[Key]:
        return self.policy.protect(keep)

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        self.policy.commit(keys, request)

    def sizes(self) -> dict[str, int]:
        return self.policy.sizes()


def evict_checked(policy: Policy, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
    """`policy.evict`, with its answer held against law 1: a wrong victim would be somebody's bytes overwritten.

    Raises:
        PolicyError: the policy broke the law.
    """
    victims = policy.evict(n, keep, offer)
    if len(victims) != n or len(distinct(victims)) != n or not keep.isdisjoint(victims):
        raise PolicyError(
            f"policy {policy.name!r} was to evict {n} distinct blocks outside {len(keep)} kept ones "
            f"and returned {victims!r}; it breaks law 1 of kvloft.policies.base"
        )
    return victims
