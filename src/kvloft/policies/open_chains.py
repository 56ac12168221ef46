"""Chains of requests that have not ended: of each, the tail leaves before the head."""

from collections.abc import Collection, Hashable, Sequence

from kvloft._table import Queues
from kvloft.policies.base import Offer
from kvloft.request import Key


class OpenChains:
    """Blocks that requests have stored so far, where one has stored in more than one batch.

    The order of use is settled when a request ends. Until then its early blocks look older than its late ones, which are of
    no use without them. A batch by itself is admitted tail first, so only requests of several batches need watching.
    """

    def __init__(self) -> None:
        self._chains: dict[Hashable, Sequence[Key] | dict[Key, None]] = {}
        """Blocks by request, head to tail. A dictionary once it has more than one batch."""
        self._owners: dict[Key, Hashable] = {}
        """Requests by block, of those with more than one batch."""

    def admit(self, offer: Offer) -> None:
        """A batch of a request is being stored."""
        owner = offer.request.id
        chain = self._chains.get(owner)
        if chain is None:
            self._chains[owner] = offer.keys
            return
        if not isinstance(chain, dict):
            chain = self._chains[owner] = dict.fromkeys(chain)
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

    def clear(self) -> None:
        self._chains.clear()
        self._owners.clear()
