"""A tier in simulated time: what a medium of some size, latency and bandwidth would do."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from kvloft.config import parse_size
from kvloft.errors import ConfigError
from kvloft.request import Key
from kvloft.tiers.base import Buffer, JobResult, Presence, Status, Tier, TierStats


class TierModel(msgspec.Struct, frozen=True):
    """A medium. Reads and writes each have their own bandwidth, shared by all jobs in turn.

    Args:
        name: what results call it.
        capacity_bytes: what it holds.
        latency: seconds from a job's turn to its first byte.
        read_bytes_per_second: bandwidth of reads.
        write_bytes_per_second: bandwidth of writes.
    """

    name: str
    capacity_bytes: int
    latency: float = 0.0001
    read_bytes_per_second: float = 5e9
    write_bytes_per_second: float = 3e9


def parse_tier(text: str) -> TierModel:
    """From "name:capacity:read:write:seconds"; what is left out from the right has its default.

    Raises:
        ConfigError: a part is none of that.
    """
    name, *rest = text.split(":")
    if not name or not 1 <= len(rest) <= 4:
        raise ConfigError(f"tier: {text!r} is not of the form name:capacity:read:write:seconds, such as disk:2TiB:6GB:3GB")
    rates = dict(zip(("read_bytes_per_second", "write_bytes_per_second"), rest[1:3], strict=False))
    try:
        latency = {"latency": float(rest[3])} if len(rest) == 4 else {}
        return TierModel(
            name, parse_size(rest[0]), **latency, **{key: float(parse_size(rate)) for key, rate in rates.items()}
        )
    except ValueError as error:
        raise ConfigError(f"tier: {text!r}: {error}") from error


def parse_rate(name: str, text: str) -> float:
    """Bytes a second, from text such as "25GB".

    Raises:
        ConfigError: it is none; names the setting.
    """
    try:
        return float(parse_size(text))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


class Channel:
    """A link that serves one transfer after another."""

    def __init__(self, bytes_per_second: float, latency: float = 0.0) -> None:
        self._rate = bytes_per_second
        self._latency = latency
        self._free = 0.0
        self.nbytes = 0
        """Moved so far, what is under way included."""

    def move(self, nbytes: int, now: float) -> float:
        """Queue a transfer; when it will be done."""
        self.nbytes += nbytes
        self._free = max(self._free, now) + self._latency + nbytes / self._rate
        return self._free


class Medium:
    """What tiers of several engines have in common if they are one store: its blocks and its bandwidth."""

    def __init__(self, model: TierModel) -> None:
        self.keys: OrderedDict[Key, None] = OrderedDict()
        self.reads = Channel(model.read_bytes_per_second, model.latency)
        self.writes = Channel(model.write_bytes_per_second, model.latency)


class SimulatedTier(Tier):
    """Keeps keys, no bytes, least recently used out first. Jobs end when `clock` says that they are due.

    Args:
        model: the medium.
        block_bytes: of every block.
        clock: seconds.
        medium: shared with other tiers of the same model; None for one of its own.
    """

    def __init__(self, model: TierModel, block_bytes: int, clock: Callable[[], float], medium: Medium | None = None) -> None:
        medium = medium or Medium(model)
        self.name = model.name
        self.capacity_bytes = model.capacity_bytes
        self.reads, self.writes, self._keys = medium.reads, medium.writes, medium.keys
        self._block_bytes = block_bytes
        self._clock = clock
        self._jobs: dict[str, deque[tuple[float, float, int, Sequence[Key]]]] = {"load": deque(), "store": deque()}
        """By kind, since each is served in turn: when a job is due and was submitted, its number and blocks."""
        self._counters: Counter[str] = Counter()

    @property
    def next_due(self) -> float | None:
        """When the next job ends."""
        return min((jobs[0][0] for jobs in self._jobs.values() if jobs), default=None)

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        return [Presence.HIT if key in self._keys else Presence.MISS for key in keys]

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        now = self._clock()
        nbytes = self._block_bytes * sum(key not in self._keys for key in keys)
        self._jobs["store"].append((self.writes.move(nbytes, now), now, job, keys))
        self._counters["bytes_written"] += nbytes

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        now = self._clock()
        nbytes = self._block_bytes * len(keys)
        self._jobs["load"].append((self.reads.move(nbytes, now), now, job, keys))
        self._counters["bytes_read"] += nbytes

    def poll(self) -> list[JobResult]:
        now = self._clock()
        results = []
        for kind, jobs in self._jobs.items():
            do = self._load if kind == "load" else self._store
            while jobs and jobs[0][0] <= now:
                due, since, job, keys = jobs.popleft()
                results.append(JobResult(job, [do(key) for key in keys], due - since))
        return results

    def drain(self, timeout: float | None = None) -> bool:
        """Simulated time does not pass while somebody waits: what is not due stays undone."""
        return not any(self._jobs.values())

    def touch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._keys:
                self._keys.move_to_end(key)

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._keys.pop(key, None)

    def stats(self) -> TierStats:
        blocks = len(self._keys)
        return TierStats(blocks, blocks * self._block_bytes, self.capacity_bytes, dict(self._counters))

    def close(self) -> None:
        """There is nothing to let go of."""

    def _load(self, key: Key) -> Status:
        if key not in self._keys:
            self._counters["missed"] += 1
            return Status.MISS
        self._counters["loaded"] += 1
        return Status.OK

    def _store(self, key: Key) -> Status:
        assert self.capacity_bytes is not None
        if key in self._keys:
            return Status.OK
        if self._block_bytes > self.capacity_bytes:
            self._counters["dropped"] += 1
            return Status.DROPPED
        while (len(self._keys) + 1) * self._block_bytes > self.capacity_bytes:
            self._keys.popitem(last=False)
            self._counters["evicted"] += 1
        self._keys[key] = None
        self._counters["stored"] += 1
        return Status.OK
