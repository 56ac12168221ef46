"""What one request has done with the pool so far."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from operator import itemgetter

from kvloft.request import Key, Request


@dataclass(slots=True)
class Life:
    """A request between its first call and the last completion of its transfers."""

    request: Request
    chain: dict[Key, bool] = field(default_factory=dict)
    """Blocks it read or stored, in the order it first named them; True where it only stored the block itself."""
    writing: dict[Key, None] = field(default_factory=dict)
    """Its stores in flight, in chain order."""
    reading: Counter[Key] = field(default_factory=Counter)
    """Its loads in flight: how many of each block."""
    fetched: set[Key] = field(default_factory=set)
    """Blocks brought up from a tier for it. They join its chain when it reads them."""
    displaced: int = 0
    """Blocks evicted for its stores."""
    gap: Key | None = None
    """The first block that its last store left out. What comes behind it is of no use until it is offered again."""
    finished: bool = False

    @property
    def over(self) -> bool:
        return self.finished and not self.writing and not self.reading

    def read(self, keys: Iterable[Key]) -> int:
        """Note blocks found ready; how many of them are new to this request. Reading what it stored itself, or what was
        fetched for it, is no reuse."""
        new = list(filterfalse(self.chain.__contains__, keys))
        self.chain.update(dict.fromkeys(new, False))
        self.chain.update(dict.fromkeys(self.fetched.intersection(new), True))
        return len(new)

    def store(self, keys: Sequence[Key]) -> None:
        self.chain.update(dict.fromkeys(filterfalse(self.chain.__contains__, keys), True))
        self.writing.update(dict.fromkeys(keys))

    def fetch(self, keys: Sequence[Key]) -> None:
        self.fetched.update(keys)
        self.writing.update(dict.fromkeys(keys))

    def land(self, keys: Sequence[Key]) -> None:
        """These stores have ended."""
        deque(map(self.writing.pop, keys), maxlen=0)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget stores that failed: they taught nothing, and the blocks count no more as this request's."""
        for key in keys:
            self.fetched.discard(key)
            if self.chain.get(key):
                del self.chain[key]

    def taught(self, keys: Iterable[Key]) -> list[Key]:
        """Those from which the policy has learned for this request, or is about to."""
        return [key for key in keys if key in self.chain or key in self.fetched] if self.chain or self.fetched else []

    def parent(self) -> Key | None:
        """The block it named last."""
        return next(reversed(self.chain), None)

    def order(self, resident: Collection[Key]) -> list[Key]:
        """Its chain, as far as it is in `resident`, head to tail: by the request's own positions where it knows them all,
        else as first named."""
        chain = list(filter(resident.__contains__, self.chain))
        if self.request.position is None:
            return chain
        positions = [at for at in map(self.request.position, chain) if at is not None]
        if len(positions) == len(chain) and positions != sorted(positions):
            chain = [key for _, key in sorted(zip(positions, chain, strict=True), key=itemgetter(0))]
        return chain
