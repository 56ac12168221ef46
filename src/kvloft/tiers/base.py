"""The contract of a tier: a place below host memory where framed blocks rest.

Duties of every tier, proved by `kvloft.testing.tiers.TierSuite`:

1. No call but `drain` and `close` blocks: none waits for I/O, a lock held during I/O, or another process.
2. Every job that `submit_store` or `submit_load` took is answered exactly once by `poll`, with a status for each block, in
   the job's order. Jobs may finish in any order.
3. A load says `OK` only if the block was verified (frame, namespace, key, length, checksum) and all of it is in the caller's
   buffer. Whatever does not verify is a `MISS`, is removed or quarantined, and is counted.
4. The buffers of a job belong to the tier from `submit_*` until its answer, and are not touched afterwards.
5. Bytes at rest never exceed `capacity_bytes`. A block that cannot be made to fit is `DROPPED`, which is no error.
6. A restart finds what was committed, never a phantom, never a torn block.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from kvloft.request import Key

Buffer: TypeAlias = memoryview
"""One block's bytes in the host arena: contiguous, format "B", writable for loads."""


class Presence(Enum):
    """What a tier knows of a block without waiting."""

    MISS = "miss"
    HIT = "hit"
    """It was there at last sight; the load decides."""
    UNKNOWN = "unknown"
    """Being looked up; ask again. Bounded in time: it becomes one of the others."""


class Status(Enum):
    """How a job ended for one block."""

    OK = "ok"
    MISS = "miss"
    """Load: not there, or it did not verify. Never an error."""
    DROPPED = "dropped"
    """Store: not kept, on purpose (no room, backpressure, already being written elsewhere)."""
    FAILED = "failed"
    """The medium failed: an error of the file system, the server, the network, or a timeout."""


class JobResult(NamedTuple):
    """The answer to one job.

    Args:
        job: the number its caller gave it.
        statuses: one for each of the job's blocks, in its order.
        seconds: from submit to end.
        error: what went wrong, in words, if something `FAILED`.
    """

    job: int
    statuses: Sequence[Status]
    seconds: float
    error: str | None = None


@dataclass(slots=True)
class TierStats:
    """A tier at one moment. Counters never go back."""

    blocks: int = 0
    bytes: int = 0
    capacity_bytes: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    """By name: stored, loaded, missed, corrupt, evicted, dropped, failed, bytes_written, bytes_read."""


class Change(NamedTuple):
    """A block that a tier holds from now on, or no more."""

    key: Key
    stored: bool


class Tier(ABC):
    """Where blocks rest. All blocks of one tier object have the same size and namespace, given when it is made."""

    name: str
    capacity_bytes: int | None = None
    """None: the tier has no bound of its own (a shared store bounds itself)."""
    remote: bool = False
    """Whether blocks come over a network."""
    reports_changes: bool = False
    """Whether `take_changes` tells of all that leaves, whoever made it leave."""

    @abstractmethod
    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        """What is known of each block. Cheap, idempotent, counts as no access."""

    @abstractmethod
    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        """Start writing blocks. A block already at rest is `OK` without being written again."""

    @abstractmethod
    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        """Start reading blocks into the buffers."""

    @abstractmethod
    def poll(self) -> list[JobResult]:
        """Answers that have come in since the last call."""

    @abstractmethod
    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every job has its answer ready for `poll`; False if `timeout` seconds did not suffice."""

    @abstractmethod
    def touch(self, keys: Sequence[Key]) -> None:
        """These blocks were used; the tier may keep them longer. Never an error if they are gone."""

    @abstractmethod
    def remove(self, keys: Sequence[Key]) -> None:
        """Forget blocks; they are misses from now on. Their bytes may go later."""

    def take_changes(self) -> list[Change]:
        """What has come and gone since the last call, for each block in the order in which it happened; from the first call
        on it is kept in mind. A block that was there before, or that another process stored, comes when it is first found.
        Does not wait."""
        return []

    @abstractmethod
    def stats(self) -> TierStats: ...

    @abstractmethod
    def close(self) -> None:
        """Drain, then let go of files, threads and connections. Idempotent."""
