"""What one request has done with the pool so far."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvloft.request import Key, Request


@dataclass(slots=True)
class Life:
    """A request between its first call and the last completion of its transfers."""

    request: Request
    chain: dict[Key, bool] = field(default_factory=dict)
    """Blocks it read or stored, in the order it first named them; True where it only stored the block itself."""
    writing: dict[Key, None] = field(default_factory=dict)
    """Its stores in flight, in chain order."""
    reading: dict[Key, int] = field(default_factory=dict)
    """Its loads in flight: how many of each block."""
    fetched: set[Key] = field(default_factory=set)
    """Blocks brought up from a tier for it. They join its chain when it reads them."""
    finished: bool = False

    @property
    def over(self) -> bool:
        return self.finished and not self.writing and not self.reading

    def read(self, keys: Iterable[Key]) -> int:
        """Note blocks found ready; how many of them are new to this request. Reading what it stored itself, or what was
        fetched for it, is no reuse."""
        before = len(self.chain)
        for key in keys:
            self.chain.setdefault(key, key in self.fetched)
        return len(self.chain) - before

    def store(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.chain.setdefault(key, True)
            self.writing[key] = None

    def fetch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.fetched.add(key)
            self.writing[key] = None

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget stores that failed: they taught nothing, and the blocks count no more as this request's."""
        for key in keys:
            self.fetched.discard(key)
            if self.chain.get(key):
                del self.chain[key]

    def taught(self, key: Key) -> bool:
        """Whether the policy has learned from this block for this request, or is about to."""
        return key in self.chain or key in self.fetched

    def parent(self) -> Key | None:
        """The block it named last."""
        return next(reversed(self.chain), None)

    def order(self, resident: Collection[Key]) -> Sequence[Key]:
        """Its chain, as far as it is in `resident`, head to tail: by the request's own positions where it knows them all,
        else as first named."""
        chain = [key for key in self.chain if key in resident]
        position = self.request.position
        if position is not None:
            positions = {key: at for key in chain if (at := position(key)) is not None}
            if len(positions) == len(chain):
                chain.sort(key=positions.__getitem__)
        return chain
