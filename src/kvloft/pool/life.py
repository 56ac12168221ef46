"""What one request has done with the pool so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kvloft._table import Index, Queues, ascending
from kvloft.request import Key, Request


@dataclass(slots=True)
class Life:
    """A request between its first call and the last completion of its transfers. It is noted by the batch: no dictionary has
    to be made for each."""

    request: Request
    chain: Queues = field(default_factory=Queues)
    """Blocks it read or stored, in the order it first named them."""
    reused: list[Key] = field(default_factory=list)
    """Those of its chain that others had stored."""
    writing: list[Key] = field(default_factory=list)
    """Its stores in flight, in chain order."""
    reading: list[list[Key]] = field(default_factory=list)
    """Its loads in flight."""
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

    def read(self, keys: Sequence[Key]) -> int:
        """Note blocks found ready; how many of them are new to this request. Reading what it stored itself, or what was
        fetched for it, is no reuse."""
        new = self.chain.absent(keys) if self.chain else list(keys)
        self.chain.add(new)
        self.reused += [key for key in new if key not in self.fetched] if self.fetched else new
        return len(new)

    def store(self, keys: Sequence[Key]) -> None:
        self.chain.add(keys)
        self.writing += keys

    def fetch(self, keys: Sequence[Key]) -> None:
        self.fetched.update(keys)
        self.writing += keys

    def written(self, named: set[Key]) -> list[Key]:
        """Those of its stores in flight that are named, in chain order."""
        return list(filter(named.__contains__, self.writing))

    def land(self, keys: Sequence[Key]) -> None:
        """These stores have ended."""
        if len(keys) == len(self.writing):
            self.writing.clear()
        else:
            landed = set(keys)
            self.writing = [key for key in self.writing if key not in landed]

    def release(self, named: set[Key]) -> list[Key]:
        """One load of each of these blocks has ended. Returns those of which any was in flight."""
        released: list[Key] = []
        left: list[list[Key]] = []
        for batch in self.reading:
            ended = list(filter(named.__contains__, batch))
            if len(ended) < len(batch):
                rest = set(batch).difference(ended)
                left.append([key for key in batch if key in rest])
            released += ended
            if ended and len(self.reading) > 1:
                named = named.difference(ended)
        self.reading = left
        return released

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget stores that failed: they taught nothing, and the blocks count no more as this request's."""
        self.fetched.difference_update(keys)
        reused = set(self.reused)
        self.chain.remove([key for key in self.chain.present(keys) if key not in reused])

    def taught(self, keys: Sequence[Key]) -> list[Key]:
        """Those from which the policy has learned for this request, or is about to."""
        if self.fetched:
            return [key for key in keys if key in self.fetched or key in self.chain]
        return self.chain.present(keys) if self.chain else []

    def parent(self) -> Key | None:
        """The block it named last."""
        return self.chain.newest()

    def order(self, resident: Index) -> list[Key]:
        """Its chain, as far as it is resident, head to tail: by the request's own positions where it knows them all, else as
        first named."""
        chain = resident.present(self.chain.keys())
        if self.request.position is None or ascending(map(self.request.position, chain)):
            return chain
        positions = [at for at in map(self.request.position, chain) if at is not None]
        if len(positions) < len(chain):
            return chain
        return [key for _, key in sorted(zip(positions, chain, strict=True), key=itemgetter(0))]

    def stored(self, chain: Sequence[Key]) -> set[Key]:
        """Those of `chain` that it only stored itself."""
        if len(self.reused) == len(self.chain):
            return set()
        stored = set(chain)
        stored.difference_update(self.reused)
        return stored
