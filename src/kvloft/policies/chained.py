"""Ancestor-closed eviction: any policy, but only the ends of chains may leave.

A block is of use only while all blocks before it are there, so the cached set never holds one whose predecessor is gone.
"""

from collections.abc import Iterator, Sequence, Set

from kvloft.errors import PolicyError
from kvloft.policies.base import Offer, Policy, Wrapper
from kvloft.policies.chains import ChainTree, Segment, runs, stand_in
from kvloft.request import Key, Request


class Chained(Wrapper):
    """Runs a policy in ancestor-closed mode: of the ends of chains it evicts those that the policy would evict first.

    A use of a block is a use of all blocks before it, whether they were looked up or not: what the GPU still had does not
    make a prefix's head look colder than its tail. When a store fails in the middle of a chain, what is behind it stays
    until its turn comes.

    One call of the policy evicts as many blocks as there are ends, or fewer; as it goes through its order, what comes before
    a block that leaves may leave as well. Where it spares a block that it could have had, and takes one before it, the one
    that was taken comes back as a new one and the other leaves.
    """

    name = "chains"
    minds_running = True

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.name = f"{policy.name}+chains"  # type: ignore[misc]
        self._begin()

    def _begin(self) -> None:
        self._tree: ChainTree[Segment] = ChainTree(Segment, self.capacity)
        self._ends: dict[Key, None] = {}
        """Last blocks of segments with nothing behind them."""

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
            parent = self._tree.end_at(before, self._tree.split)
            if parent.keys:
                self._ends.pop(parent.keys[-1], None)
            if parent.grows(offer.request):
                self._tree.extend(parent, run)
                self._ends[run[-1]] = None
                continue
            segment = self._tree.add(run, parent)
            segment.owner = (offer.request.id,)
            parent.live += 1
            self._ends[segment.keys[-1]] = None

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        for segment, _ in self._tree.walk(chain):
            segment.owner = None
        # A request may have named a later block of its chain first.
        used = list(dict.fromkeys([*self._before(chain[0]), *chain])) if chain else []
        self.policy.finish(used, stored, request)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims: list[Key] = []
        while len(victims) < n:
            free = len(self._ends) - sum(map(self._ends.__contains__, keep))
            view = _Receding(self._tree, keep)
            asked = offer._replace(keys=offer.keys[len(victims) :])
            chosen = self.policy.evict(min(n - len(victims), free), view, asked) if free else []
            if not chosen:
                raise PolicyError(f"policy {self.policy.name!r} found none of the ends of chains that may leave; law 1")
            if len(view.gone) > len(chosen):
                chosen = stand_in(self.policy, chosen, view.gone, self._before)
            self._drop(chosen)
            victims += chosen
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self.policy.forget(keys)
        self._drop(keys)

    def clear(self) -> None:
        self.policy.clear()
        self._begin()

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
        for key in filter(self._ends.__contains__, keys):
            del self._ends[key]
        for segment, _ in self._tree.drop(keys):
            if not segment.keys:
                self._tree.remove(segment)
                if not segment.parent:
                    continue
                segment = segment.parent
                segment.live -= 1
            if segment.keys and not segment.live:
                self._ends[segment.keys[-1]] = None


class _Receding(Set[Key]):
    """The blocks that may not leave now: those to be kept, and those that others are behind. One that may leave counts as
    gone as soon as it was asked for, so that what comes before it may follow."""

    def __init__(self, tree: ChainTree[Segment], keep: Set[Key]) -> None:
        self._tree = tree
        self._keep = keep
        self.gone: dict[Key, None] = {}
        self._left: dict[int, int] = {}
        """By segment: its blocks that are not gone, ..."""
        self._live: dict[int, int] = {}
        """... and its children with any."""

    def __contains__(self, key: object) -> bool:
        if key in self.gone:
            return False
        if key in self._keep:
            return True
        segment = self._tree.of(key)
        if segment is None:
            return False
        left = self._left.get(segment.number, len(segment.keys))
        if self._live.get(segment.number, segment.live) or segment.keys[left - 1] != key:
            return True
        self.gone[key] = None
        self._left[segment.number] = left - 1
        parent = segment.parent
        if left == 1 and parent:
            self._live[parent.number] = self._live.get(parent.number, parent.live) - 1
        return False

    def __iter__(self) -> Iterator[Key]:
        return (key for key in self._tree.home if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _last(keys: Sequence[Key], keep: Set[Key]) -> int:
    """Place of the last of `keys` that is in `keep`."""
    return next(place for place in range(len(keys) - 1, -1, -1) if keys[place] in keep)
