"""A tier that can forget at once what it holds, without touching it."""

import secrets
from collections.abc import Sequence

from kvloft.request import Key
from kvloft.tiers.base import Buffer, Change, Presence, Tier
from kvloft.tiers.wrappers import Wrapper


class Salted(Wrapper):
    """Another tier under keys with a salt. At first there is none, so blocks of earlier runs are found; after `renew` what
    was stored before is found by nobody who comes through here, and what is stored then by nobody who does not. Blocks that
    are not found any more leave in their turn.

    Args:
        tier: the one below; its keys may be tuples.
    """

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier)
        self._salt = b""

    def renew(self) -> None:
        """What was stored until now means something else from now on. Jobs under way end as they began."""
        self._salt = secrets.token_bytes(16)

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        return self.tier.lookup(self._salted(keys))

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self.tier.submit_store(job, self._salted(keys), buffers)

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self.tier.submit_load(job, self._salted(keys), buffers)

    def touch(self, keys: Sequence[Key]) -> None:
        self.tier.touch(self._salted(keys))

    def remove(self, keys: Sequence[Key]) -> None:
        self.tier.remove(self._salted(keys))

    def take_changes(self) -> list[Change]:
        """Of blocks that can be found through here; all others are gone since `renew`."""
        changes = self.tier.take_changes()
        if not self._salt:
            return changes
        return [
            Change(change.key[1], change.stored)
            for change in changes
            if isinstance(change.key, tuple) and change.key[0] == self._salt
        ]

    def _salted(self, keys: Sequence[Key]) -> Sequence[Key]:
        return [(self._salt, key) for key in keys] if self._salt else keys
