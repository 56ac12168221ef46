"""Ancestor-closed eviction: any policy, but only the ends of chains may leave.

A block is of use only while all blocks before it are there, so the cached set never holds one whose predecessor is gone.
"""

from collections.abc import Iterator, Sequence, Set

from kvloft.errors import PolicyError
from kvloft.policies.base import Offer, Policy
from kvloft.policies.chains import ChainTree, Segment, runs
from kvloft.request import Key, Request


class Chained(Policy):
    """Runs a policy in ancestor-closed mode: of the ends of chains it evicts those that the policy would evict first.

    A use of a block is a use of all blocks before it, whether they were looked up or not: what the GPU still had does not
    make a prefix's head look colder than its tail. When a store fails in the middle of a chain, what is behind it stays
    until its turn comes.
    """

    name = "chains"

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.capacity)
        self.policy = policy
        self.evictions = policy.evictions
        self._tree: ChainTree[Segment] = ChainTree(Segment)

    def accept(self, offer: Offer, need: int) -> int:
        return self.policy.accept(offer, need)

    def protect(self, keep: set[Key]) -> set[Key]:
        """`keep` and all blocks before them."""
        closed = set(keep)
        whole: set[int] = set()
        partly: set[int] = set()
        for key in keep:
            segment = self._tree.of(key)
            if segment is None or segment.number in partly:
                continue
            partly.add(segment.number)
            closed.update(segment.keys[: _last(segment.keys, keep)])
            above = segment.parent
            while above and above.keys and above.number not in whole:
                whole.add(above.number)
                closed.update(above.keys)
                above = above.parent
        return closed

    def admit(self, offer: Offer) -> None:
        self.policy.admit(offer)
        for run, before in runs(offer.keys, offer):
            parent = self._tree.of(before) if before is not None else None
            if parent and parent.owner == (offer.request.id,) and parent.keys[-1] == before and not parent.live:
                self._tree.extend(parent, run)
                continue
            if parent is None:
                parent = self._tree.root
            elif parent.keys[-1] != before:
                parent = self._tree.split(parent, parent.keys.index(before) + 1)
            segment = self._tree.add(run, parent)
            segment.owner = (offer.request.id,)
            parent.live += 1

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        self.policy.commit(keys, request)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for segment, _ in self._tree.walk(chain):
            segment.owner = None
        # A request may have named a later block of its chain first.
        used = list(dict.fromkeys([*self._before(chain[0]), *chain])) if chain else []
        self.policy.finish(used, stored, request)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims: list[Key] = []
        while len(victims) < n:
            ends = _Ends(self._tree, keep)
            chosen = self.policy.evict(1, ends, offer._replace(keys=offer.keys[len(victims) :]))
            if not chosen:
                raise PolicyError(f"policy {self.policy.name!r} found none of the ends of chains that may leave; law 1")
            self._drop(chosen)
            victims += chosen
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self.policy.forget(keys)
        self._drop(keys)

    def clear(self) -> None:
        self.policy.clear()
        self._tree = ChainTree(Segment)

    def sizes(self) -> dict[str, int]:
        return self.policy.sizes()

    def _before(self, key: Key) -> list[Key]:
        """Resident blocks before one, head first."""
        segment = self._tree.of(key)
        assert segment is not None
        parts = [segment.keys[: segment.keys.index(key)]]
        while segment.parent and segment.parent.keys:
            segment = segment.parent
            parts.append(segment.keys)
        return [key for part in reversed(parts) for key in part]

    def _drop(self, keys: Sequence[Key]) -> None:
        for segment, _ in self._tree.drop(keys):
            if not segment.keys:
                if segment.parent:
                    segment.parent.live -= 1
                self._tree.remove(segment)


class _Ends(Set[Key]):
    """The blocks that may not leave now: those to be kept, and those that others are behind."""

    def __init__(self, tree: ChainTree[Segment], keep: Set[Key]) -> None:
        self._tree = tree
        self._keep = keep

    def __contains__(self, key: object) -> bool:
        if key in self._keep:
            return True
        segment = self._tree.of(key)
        return segment is not None and bool(segment.live or segment.keys[-1] != key)

    def __iter__(self) -> Iterator[Key]:
        return (key for key in self._tree.home if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _last(keys: Sequence[Key], keep: Set[Key]) -> int:
    """Place of the last of `keys` that is in `keep`."""
    return next(place for place in range(len(keys) - 1, -1, -1) if keys[place] in keep)
