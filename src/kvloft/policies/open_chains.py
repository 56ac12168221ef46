"""Chains of requests that have not ended: of each, the tail leaves before the head."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import filterfalse, islice, takewhile

from kvloft._table import Queues
from kvloft.policies.base import Offer, Policy, Wrapper
from kvloft.policies.chains import stand_in
from kvloft.request import Key, Request


class OpenChains:
    """Blocks that requests have stored so far, where one has stored in more than one batch.

    The order of use is settled when a request ends. Until then its early blocks look older than its late ones, which are of
    no use without them.

    Args:
        one: whether requests of a single batch need watching, too: they do unless it is admitted tail first.
    """

    def __init__(self, one: bool = False) -> None:
        self._one = one
        self._chains: dict[Hashable, Sequence[Key] | dict[Key, None]] = {}
        """Blocks by request, head to tail. A dictionary once it has more than one batch."""
        self._owners: dict[Key, Hashable] = {}
        """Requests by block, of those with more than one batch."""

    def admit(self, offer: Offer) -> None:
        """A batch of a request is being stored."""
        owner = offer.request.id
        chain = self._chains.get(owner)
        if chain is None and not self._one:
            self._chains[owner] = offer.keys
            return
        if not isinstance(chain, dict):
            chain = self._chains[owner] = dict.fromkeys(chain or ())
            self._owners.update(dict.fromkeys(chain, owner))
        chain.update(dict.fromkeys(offer.keys))
        self._owners.update(dict.fromkeys(offer.keys, owner))

    def finish(self, owner: Hashable) -> None:
        """The request has ended."""
        chain = self._chains.pop(owner, ())
        if isinstance(chain, dict):
            for key in chain:
                if self._owners.get(key) == owner:
                    del self._owners[key]

    def forget(self, keys: Sequence[Key]) -> None:
        """These blocks have left."""
        for key in filter(self._owners.__contains__, keys if self._owners else ()):
            chain = self._chains.get(self._owners.pop(key))
            if isinstance(chain, dict):
                chain.pop(key, None)

    def tails_first(self, victims: list[Key], queues: Queues, keep: Collection[Key], queue: int = 0) -> list[Key]:
        """As many victims of each chain, but those nearest to its tail.

        Args:
            victims: what would leave.
            queues: where the victims were chosen from.
            keep: what must not leave.
            queue: which of the queues.
        """
        if not self._owners:
            return victims
        owned: dict[Hashable, list[int]] = {}
        for at, owner in enumerate(map(self._owners.get, victims)):
            if owner is not None:
                owned.setdefault(owner, []).append(at)
        chosen = list(victims)
        for owner, places in owned.items():
            tail = (key for key in reversed(self._chains[owner]) if queues.queue(key) == queue and key not in keep)
            for at, key in zip(places, tail, strict=False):
                chosen[at] = key
        return chosen

    def several(self) -> dict[Hashable, dict[Key, None]]:
        """Blocks, head to tail, by request, of those that have stored in more than one batch."""
        return {owner: chain for owner, chain in self._chains.items() if isinstance(chain, dict) and chain}

    def owner(self, key: object) -> Hashable:
        """The request that has stored a block in one of several batches, None if there is none."""
        return self._owners.get(key)

    def clear(self) -> None:
        self._chains.clear()
        self._owners.clear()


class TailsFirst(Wrapper):
    """Runs a policy so that of a running request's blocks the tail leaves before the head.

    The policy may take the last block of a running chain that may leave, and then the one before it; what it cannot find
    that way is taken from the tails.
    """

    name = "tails first"

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._running = OpenChains(one=True)

    @classmethod
    def over(cls, policy: Policy) -> Policy:
        """The policy, in such a one if it needs it."""
        return policy if policy.minds_running else cls(policy)

    def admit(self, offer: Offer) -> None:
        self.policy.admit(offer)
        self._running.admit(offer)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self._running.finish(request.id)
        self.policy.finish(chain, stored, request)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        chains = self._running.several()
        if not chains:
            victims = self.policy.evict(n, keep, offer)
        else:
            kept = Counter(map(self._running.owner, keep))
            free = {owner: m for owner, chain in chains.items() if (m := len(chain) - kept[owner]) > 0}
            tails = _Tails(self._running, {owner: chains[owner] for owner in free}, keep)
            # What else is there, and the last of each chain: so much the policy finds in one pass.
            found = self.residents() - len(keep) - sum(free.values()) + len(free)
            victims = tails.take(n - found)
            self.policy.forget(victims)
            self.evictions["running"] += len(victims)
            if n > len(victims):
                forced = len(tails.gone)
                chosen = self.policy.evict(n - len(victims), tails, offer)
                if len(tails.gone) > forced + len(chosen):
                    chosen = stand_in(self.policy, chosen, [*tails.gone][forced:], self._before)
                victims += chosen
        self._running.forget(victims)
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self._running.forget(keys)
        self.policy.forget(keys)

    def clear(self) -> None:
        self._running.clear()
        self.policy.clear()

    def _before(self, key: Key) -> Iterable[Key]:
        """The blocks before one in its chain, head first."""
        return takewhile(lambda other: other != key, self._running.several().get(self._running.owner(key), ()))


class _Tails(Set[Key]):
    """The blocks that may not leave now: those to be kept, and those of running chains behind which there are others that
    may. One that may leave counts as gone as soon as it was asked for."""

    def __init__(self, running: OpenChains, chains: Mapping[Hashable, dict[Key, None]], keep: Set[Key]) -> None:
        self._running = running
        self._keep = keep
        self._chains = {owner: filterfalse(keep.__contains__, reversed(chain)) for owner, chain in chains.items()}
        self._last = {owner: next(chain, self) for owner, chain in self._chains.items()}
        """By request: the last block that may leave."""
        self.gone: dict[Key, None] = {}

    def take(self, n: int) -> list[Key]:
        """The n that go first, but of no chain its last one."""
        taken: list[Key] = []
        for owner, chain in self._chains.items():
            for following in islice(chain, max(0, n - len(taken))):
                taken.append(self._last[owner])
                self._last[owner] = following
        self.gone.update(dict.fromkeys(taken))
        return taken

    def __contains__(self, key: object) -> bool:
        owner = self._running.owner(key)
        if owner is None or key in self._keep:
            return key in self._keep
        if key in self.gone:
            return False
        if owner not in self._last or self._last[owner] != key:
            return owner in self._last
        self.gone[key] = None
        self._last[owner] = next(self._chains[owner], self)
        return False

    def __iter__(self) -> Iterator[Key]:
        raise TypeError("what may not leave changes while one asks; ask for single blocks")

    def __len__(self) -> int:
        raise TypeError("what may not leave changes while one asks; ask for single blocks")
