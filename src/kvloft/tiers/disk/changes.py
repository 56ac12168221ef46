"""What comes and goes on a disk, by the keys that its callers know."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from kvloft.request import Key
from kvloft.tiers.base import Change


class Changes:
    """Turns the catalog's journal, which knows digests only, into changes of keys. One thread at a time; others may append
    to the journal meanwhile.

    A block whose key nobody has named, because it was there before or another process wrote it, is told of when it is found.

    Args:
        journal: digests that came (True) and went, in order.
        where: the blocks that are there.
    """

    def __init__(self, journal: deque[tuple[bytes, bool]], where: Mapping[bytes, int]) -> None:
        self._journal, self._where = journal, where
        self._keys: dict[bytes, Key] = {}
        """Of blocks that were told of, are being stored, or were just found."""
        self._told: set[bytes] = set()
        self._found: list[bytes] = []
        self._storing: Counter[bytes] = Counter()
        self._jobs: dict[int, Sequence[bytes]] = {}
        """Digests of store jobs without an answer."""

    def found(self, key: Key, digest: bytes) -> None:
        """A lookup has found the block."""
        if digest not in self._keys:
            self._keys[digest] = key
            self._found.append(digest)

    def storing(self, job: int, keys: Sequence[Key], digests: Sequence[bytes]) -> None:
        """A job is about to store blocks."""
        self._keys.update(zip(digests, keys, strict=True))
        self._storing.update(digests)
        self._jobs[job] = digests

    def answered(self, job: int) -> None:
        """A job has its answer."""
        for digest in self._jobs.pop(job, ()):
            self._found.append(digest)
            self._storing[digest] -= 1
            if not self._storing[digest]:
                del self._storing[digest]

    def take(self) -> list[Change]:
        """What happened since the last call."""
        changes: list[Change] = []
        while self._journal:
            digest, here = self._journal.popleft()
            key = self._keys.get(digest)
            if key is None or here == (digest in self._told):
                continue
            self._tell(digest, here, changes)
        found, self._found = self._found, []
        for digest in found:
            if digest in self._told or digest not in self._keys:
                continue
            if digest in self._where:
                self._tell(digest, True, changes)
            elif digest not in self._storing:
                del self._keys[digest]
        return changes

    def _tell(self, digest: bytes, here: bool, changes: list[Change]) -> None:
        changes.append(Change(self._keys[digest], here))
        if here:
            self._told.add(digest)
            return
        self._told.discard(digest)
        if digest not in self._storing:
            del self._keys[digest]
