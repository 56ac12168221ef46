"""A tier in memory: the contract in its smallest form. For tests, simulation and what-if."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import xxhash

from kvloft.request import Key
from kvloft.tiers.base import Buffer, Change, JobResult, Presence, Status, Tier, TierStats


class MemoryTier(Tier):
    """Keeps blocks in a dict, least recently used out first. Nothing outlives the process, unless `shelf` does.

    Jobs are done inside `poll`, so that a caller that gives buffers away too early is found out.

    Args:
        capacity_bytes: bound on the bytes of blocks kept; None for none.
        name: what stats and metrics call it.
        shelf: where the blocks lie, by key: bytes and their checksum. Give it to a second tier to play a restart.
        clock: seconds, for the time a job took.
    """

    reports_changes = True

    def __init__(
        self,
        capacity_bytes: int | None = None,
        name: str = "memory",
        shelf: OrderedDict[Key, tuple[bytes, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._shelf = OrderedDict() if shelf is None else shelf
        self._bytes = sum(len(data) for data, _ in self._shelf.values())
        self._jobs: list[tuple[Callable[[Key, Buffer], Status], int, Sequence[Key], Sequence[Buffer], float]] = []
        self._counters: Counter[str] = Counter()
        self._clock = clock
        self._changes: list[Change] | None = None
        """Since they were last taken, if anybody watches."""

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        return [Presence.HIT if key in self._shelf else Presence.MISS for key in keys]

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._jobs.append((self._store, job, keys, buffers, self._clock()))

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._jobs.append((self._load, job, keys, buffers, self._clock()))

    def poll(self) -> list[JobResult]:
        jobs, self._jobs = self._jobs, []
        return [
            JobResult(job, [work(key, buffer) for key, buffer in zip(keys, buffers, strict=True)], self._clock() - since)
            for work, job, keys, buffers, since in jobs
        ]

    def drain(self, timeout: float | None = None) -> bool:
        return True

    def touch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._shelf:
                self._shelf.move_to_end(key)

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._shelf:
                self._bytes -= len(self._shelf.pop(key)[0])
                self._note(key, stored=False)

    def take_changes(self) -> list[Change]:
        changes = [Change(key, True) for key in self._shelf] if self._changes is None else self._changes
        self._changes = []
        return changes

    def stats(self) -> TierStats:
        return TierStats(len(self._shelf), self._bytes, self.capacity_bytes, dict(self._counters))

    def close(self) -> None:
        """Nothing to let go of: answers not yet polled may still be."""

    def _note(self, key: Key, stored: bool) -> None:
        if self._changes is not None:
            self._changes.append(Change(key, stored))

    def _store(self, key: Key, buffer: Buffer) -> Status:
        if key in self._shelf:
            return Status.OK
        if self.capacity_bytes is not None and buffer.nbytes > self.capacity_bytes:
            self._counters["dropped"] += 1
            return Status.DROPPED
        while self.capacity_bytes is not None and self._bytes + buffer.nbytes > self.capacity_bytes:
            self.remove([next(iter(self._shelf))])
            self._counters["evicted"] += 1
        data = bytes(buffer)
        self._shelf[key] = data, xxhash.xxh3_64_intdigest(data)
        self._bytes += len(data)
        self._note(key, stored=True)
        self._counters["stored"] += 1
        self._counters["bytes_written"] += len(data)
        return Status.OK

    def _load(self, key: Key, buffer: Buffer) -> Status:
        data, checksum = self._shelf.get(key, (b"", 0))
        if len(data) == buffer.nbytes and xxhash.xxh3_64_intdigest(data) == checksum:
            buffer[:] = data
            self._counters["loaded"] += 1
            self._counters["bytes_read"] += len(data)
            return Status.OK
        if key in self._shelf:
            self.remove([key])
            self._counters["corrupt"] += 1
        self._counters["missed"] += 1
        return Status.MISS
