"""A shared store as a tier: what Redis, object stores and Mooncake Store have in common.

A store is spoken to in blocking calls, on threads of the tier's own; the caller's thread never waits. Everything that
changes one block in the store (write, remove, touch) goes through the same thread, in the caller's order.
"""

import itertools
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from kvloft.errors import ConfigError, TierError
from kvloft.keys import Namespace
from kvloft.request import Key
from kvloft.tiers.base import Buffer, JobResult, Presence, Status, Tier, TierStats
from kvloft.tiers.buffers import check_buffers
from kvloft.tiers.frame import HEADER_BYTES, VERSION, check, seal
from kvloft.tiers.jobs import Act, Batch, Ledger
from kvloft.tiers.presence import Lookups
from kvloft.tiers.sealed import Codec, Plain
from kvloft.tiers.secret import redact
from kvloft.troubles import Troubles

Frame: TypeAlias = tuple[bytes | Buffer, Buffer]
"""A header, and what it describes: the block as it is at rest."""
_log = logging.getLogger(__name__)
_Queue: TypeAlias = "queue.SimpleQueue[Batch | None]"

_TOMBS_MOST = 1 << 16
"""Most blocks remembered that could not be removed."""
_TOUCHES_MOST = 64
"""Batches waiting for a thread beyond which it is spared touches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What bounds a shared store. Times in seconds; defaults from the latencies in docs/decisions/0004-shared-stores.md.

    A load or store has its own time plus what its bytes, and those ahead of it, take at `slowest` bytes a second; then it
    has failed. So a store that trickles is one that failed.

    Args:
        connect: for a connection to be made.
        lookup: until a block of which the store has not told counts as a miss.
        get: for a load.
        put: for a store.
        slowest: bytes a second below which the store is of no use.
        fresh: how long an answer to a lookup is remembered.
        batch_bytes: most bytes of blocks in one exchange with the store.
        batch_blocks: most blocks in one exchange.
        waiting_bytes: most bytes of blocks waiting to be written; more are dropped.
        readers: threads that read, each with a connection.
        writers: threads that write, each with a connection.

    Raises:
        ConfigError: a value is not greater than 0.
    """

    connect: float = 1.0
    lookup: float = 0.1
    get: float = 2.0
    put: float = 3.0
    slowest: float = 64e6
    fresh: float = 1.0
    batch_bytes: int = 4 << 20
    batch_blocks: int = 512
    waiting_bytes: int = 512 << 20
    readers: int = 2
    writers: int = 2

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if problems := [f"{name}: {value!r} is not greater than 0" for name, value in values.items() if not value > 0]:
            raise ConfigError(problems)


class Store(ABC):
    """A shared store, seen through blocking calls. They may come from any of the tier's threads, several at a time.

    Each call ends by itself, within the time it was configured with. One that could not do its work raises; then nothing
    is known of its blocks.
    """

    direct_put: bool = False
    """Whether `put` reads the caller's own buffers until it returns. If not, it is given bytes of its own, and a store that
    is out of time is answered while the call goes on."""
    direct_get: bool = False
    """Whether `get` writes into the caller's own buffers until it returns. If not, what it returns is no part of a buffer,
    and a load that is out of time is answered while the call goes on."""

    @abstractmethod
    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Whether each is there."""

    @abstractmethod
    def put(self, names: Sequence[str], frames: Sequence[Frame]) -> Sequence[Status]:
        """Write each, whole or not at all: OK, DROPPED if there is no room for it, FAILED if it was refused otherwise."""

    @abstractmethod
    def get(self, names: Sequence[str], buffers: Sequence[Buffer]) -> Sequence[Frame | None]:
        """Read each; None if it is not there. Buffers are as long as what follows the header can be. If `direct_get`,
        it is read into its buffer, and is that buffer or a part of it."""

    @abstractmethod
    def touch(self, names: Sequence[str]) -> None:
        """Keep these longer, if the store can be told so."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Delete these; no error if they are gone."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


class _Item(NamedTuple):
    place: int
    key: Key
    buffer: Buffer | None = None


def path_of(namespace: Namespace, prefix: str = "kvloft") -> str:
    """What the names of a namespace's blocks begin with: prefix, frame version, model and layout, tenant; hex but for the
    first two. A rule of the store (lifecycle, access) can be given for any of these levels."""
    tenant = str(namespace.facts()["tenant"] or "0" * 32)[:16]
    return f"{prefix}/v{VERSION}/{replace(namespace, tenant='').name}/{tenant}/"


class RemoteTier(Tier):
    """A shared store behind the contract of a tier. Several instances may share one; none knows of the others.

    Args:
        store: the store. The tier closes it.
        block_bytes: of each block.
        namespace: of the blocks; its tenant is part of every name.
        name: what stats and metrics call it.
        bounds: times and sizes.
        codec: how blocks are changed before they are framed.
        prefix: what all names begin with.
        clock: seconds.

    `submit_store` and `submit_load` raise `TierError` once the tier is closed, and if keys and buffers do not fit.
    """

    remote = True

    def __init__(
        self,
        store: Store,
        block_bytes: int,
        namespace: Namespace,
        *,
        name: str,
        bounds: Bounds | None = None,
        codec: Codec | None = None,
        prefix: str = "kvloft",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.capacity_bytes = None
        self.block_bytes = block_bytes
        self._store = store
        self._bounds = bounds or Bounds()
        self._codec = codec or Plain()
        self._clock = clock
        self._fingerprint = namespace.fingerprint
        self._digester = namespace.digester()
        self._path = path_of(namespace, prefix) + (f"{self._codec.label}/" if self._codec.label else "")
        self._troubles = Troubles(f"tier {name}", _log)
        self._ledger = Ledger(clock)
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._serials = itertools.count()
        self._tombs: OrderedDict[Key, int] = OrderedDict()
        """Blocks that may still lie in the store but are to be found no more, and which removal said so."""
        self._closed = False
        self._loads: _Queue = queue.SimpleQueue()
        self._lanes: list[_Queue] = [queue.SimpleQueue() for _ in range(self._bounds.writers)]
        self._lookups = Lookups(self._exists, self._bounds.lookup, self._bounds.fresh, f"kvloft-{name}-lookup", clock)
        self._threads = [
            threading.Thread(target=self._serve, args=(work,), name=f"kvloft-{name}-{index}", daemon=True)
            for index, work in enumerate([self._loads] * self._bounds.readers + self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        answers = self._lookups.look(keys)
        if self._tombs:
            answers = [Presence.MISS if key in self._tombs else here for key, here in zip(keys, answers, strict=True)]
        return answers

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._check(keys, buffers)
        waiting = self._ledger.bytes[Act.STORE]
        # However large a block is, one may wait.
        room = max(0, self._bounds.waiting_bytes - waiting) // self.block_bytes or int(not waiting)
        items = [
            _Item(place, key, buffer) for place, (key, buffer) in enumerate(zip(keys[:room], buffers[:room], strict=True))
        ]
        self._submit(job, Act.STORE, len(keys), items, Status.DROPPED)
        self._count(dropped=len(keys) - len(items))

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._check(keys, buffers)
        pairs = enumerate(zip(keys, buffers, strict=True))
        items = [_Item(place, key, buffer) for place, (key, buffer) in pairs if key not in self._tombs]
        self._submit(job, Act.LOAD, len(keys), items, Status.MISS)
        self._count(missed=len(keys) - len(items))

    def poll(self) -> list[JobResult]:
        return self._ledger.take()

    def drain(self, timeout: float | None = None) -> bool:
        return self._ledger.wait(timeout)

    def touch(self, keys: Sequence[Key]) -> None:
        for work, batch in self._spread(Act.TOUCH, [_Item(0, key) for key in keys]):
            if work.qsize() < _TOUCHES_MOST:
                work.put(batch)

    def remove(self, keys: Sequence[Key]) -> None:
        with self._lock:
            serial = next(self._serials)
            for key in keys:
                self._tombs[key] = serial
                self._tombs.move_to_end(key)
            while len(self._tombs) > _TOMBS_MOST:
                self._tombs.popitem(last=False)
        self._lookups.note(keys, here=False)
        for work, batch in self._spread(Act.REMOVE, [_Item(0, key) for key in keys], serial):
            work.put(batch)

    def stats(self) -> TierStats:
        """What this instance did. What the store holds in all, only the store knows."""
        with self._lock:
            return TierStats(counters=dict(self._counters + self._ledger.counters + self._lookups.counters))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ledger.wait(self._bounds.get + self._bounds.put)
        for work in [self._loads] * self._bounds.readers + self._lanes:
            work.put(None)
        until = self._clock() + self._bounds.put
        ended = [self._lookups.close(self._bounds.connect + self._bounds.lookup)]
        for thread in self._threads:
            thread.join(max(0.0, until - self._clock()))
            ended.append(not thread.is_alive())
        # A thread that still waits for the store has its connection; it ends with the process.
        if all(ended):
            self._store.close()

    def _check(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        if self._closed:
            raise TierError(f"{self.name}: the tier is closed; open another")
        check_buffers(self.name, keys, buffers, self.block_bytes)

    def _submit(self, number: int, act: Act, blocks: int, items: Sequence[_Item], otherwise: Status) -> None:
        """Start a job for `items`; its other blocks have the status `otherwise`."""
        seconds = self._bounds.get if act is Act.LOAD else self._bounds.put
        nbytes = self._ledger.bytes[act] + len(items) * self.block_bytes
        job = self._ledger.open(number, act, blocks, seconds + nbytes / self._bounds.slowest)
        for place in set(range(blocks)) - {item.place for item in items}:
            job.statuses[place] = otherwise
        work = self._spread(act, items) if act is Act.STORE else [(self._loads, batch) for batch in self._cut(act, items)]
        for _, batch in work:
            batch.job = job
        self._ledger.start(job, [batch for _, batch in work])
        for lane, batch in work:
            lane.put(batch)

    def _spread(self, act: Act, items: Iterable[_Item], serial: int | None = None) -> list[tuple[_Queue, Batch]]:
        """Batches for each writing thread; a block always goes to the same one."""
        lanes: list[list[_Item]] = [[] for _ in self._lanes]
        for item in items:
            lanes[hash(item.key) % len(lanes)].append(item)
        return [
            (work, batch) for work, items in zip(self._lanes, lanes, strict=True) for batch in self._cut(act, items, serial)
        ]

    def _cut(self, act: Act, items: Iterable[_Item], serial: int | None = None) -> list[Batch]:
        serial = next(self._serials) if serial is None else serial
        batches: list[Batch] = []
        for place, key, buffer in items:
            nbytes = buffer.nbytes if buffer is not None else 0
            full = batches and (
                batches[-1].bytes + nbytes > max(nbytes, self._bounds.batch_bytes)
                or len(batches[-1].keys) >= self._bounds.batch_blocks
            )
            if full or not batches:
                batches.append(Batch(act, serial=serial))
            batch = batches[-1]
            batch.keys.append(key)
            batch.places.append(place)
            batch.bytes += nbytes
            if buffer is not None:
                batch.buffers.append(buffer)
        return batches

    def _serve(self, work: _Queue) -> None:
        acts = {Act.STORE: self._write, Act.LOAD: self._read, Act.TOUCH: self._keep, Act.REMOVE: self._forget}
        while (batch := work.get()) is not None:
            if batch.job is not None and not self._ledger.waits(batch):
                continue
            try:
                acts[batch.act](batch)
            except Exception as error:
                # Who waits for a job's answer hears of its failure; of the others nobody would.
                if batch.job is None:
                    self._troubles.tell(f"{batch.act.value} failed", redact(error))
                self._count(**{"failed": len(batch.keys)} if batch.job else {f"{batch.act.value}_failed": len(batch.keys)})
                if batch.job is not None:
                    self._ledger.finish(batch, [Status.FAILED] * len(batch.keys), redact(error))

    def _exists(self, keys: Sequence[Key]) -> Sequence[bool]:
        try:
            return self._store.exists([self._name(self._digest(key)) for key in keys])
        except Exception as error:
            self._troubles.tell("lookup failed, so its blocks count as missing", redact(error))
            raise

    def _write(self, batch: Batch) -> None:
        digests = [self._digest(key) for key in batch.keys]
        names = [self._name(digest) for digest in digests]
        self._bury(batch, dict(zip(batch.keys, names, strict=True)))
        # One index for each name: a block offered twice in a job is written once.
        index = dict(zip(names, range(len(names)), strict=True))
        there = dict(zip(index, self._store.exists(list(index)), strict=True))
        missing = [name for name in index if not there[name]]
        if not self._ledger.hold(batch):
            return
        frames = [self._frame(digests[index[name]], batch.buffers[index[name]]) for name in missing]
        if not self._store.direct_put:
            self._ledger.let_go(batch)
        written = self._store.put(missing, frames) if missing else []
        outcome = dict.fromkeys(index, Status.OK) | dict(zip(missing, written, strict=True))
        statuses = [outcome[name] for name in names]
        self._count(
            stored=written.count(Status.OK),
            dropped=written.count(Status.DROPPED),
            failed=written.count(Status.FAILED),
            bytes_written=sum(
                len(header) + payload.nbytes
                for (header, payload), status in zip(frames, written, strict=True)
                if status is Status.OK
            ),
        )
        self._lookups.note([key for key, status in zip(batch.keys, statuses, strict=True) if status is Status.OK], here=True)
        self._ledger.finish(batch, statuses, "the store refused a block" if Status.FAILED in written else None)

    def _frame(self, digest: bytes, block: Buffer) -> Frame:
        payload = self._codec.encode(digest, block)
        if payload is block and not self._store.direct_put:
            payload = np.array(np.frombuffer(block, np.uint8)).data
        return seal(self._fingerprint, digest, payload), payload

    def _read(self, batch: Batch) -> None:
        if self._store.direct_get and not self._ledger.hold(batch):
            return
        digests = [self._digest(key) for key in batch.keys]
        names = [self._name(digest) for digest in digests]
        # One index for each name: a block asked for twice in a job is read once.
        index = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
        sinks = [self._codec.sink(batch.buffers[at]) for at in index.values()]
        frames = dict(zip(index, self._store.get(list(index), sinks), strict=True))
        if not self._store.direct_get and not self._ledger.hold(batch):
            return
        outcome = {
            name: frame is not None and self._open(digests[index[name]], *frame, batch.buffers[index[name]])
            for name, frame in frames.items()
        }
        statuses = [Status.OK if outcome[name] else Status.MISS for name in names]
        for name, buffer in zip(names, batch.buffers, strict=True):
            if outcome[name] and (read := batch.buffers[index[name]]) is not buffer:
                buffer[:] = read
        unsound = [batch.keys[index[name]] for name, frame in frames.items() if frame is not None and not outcome[name]]
        self._count(
            loaded=statuses.count(Status.OK),
            missed=statuses.count(Status.MISS),
            corrupt=len(unsound),
            bytes_read=sum(HEADER_BYTES + frame[1].nbytes for frame in frames.values() if frame is not None),
        )
        self._lookups.note(
            [key for key, status in zip(batch.keys, statuses, strict=True) if status is Status.MISS], here=False
        )
        if unsound:
            self.remove(unsound)
        self._ledger.finish(batch, statuses)

    def _open(self, digest: bytes, header: bytes | Buffer, payload: Buffer, block: Buffer) -> bool:
        """Whether a frame is what it should be; if so, its block is in the buffer."""
        if check(header, payload, self._fingerprint, digest) is not None:
            return False
        return self._codec.decode(digest, payload, block)

    def _keep(self, batch: Batch) -> None:
        self._store.touch([self._name(self._digest(key)) for key in batch.keys])

    def _forget(self, batch: Batch) -> None:
        self._bury(batch, {key: self._name(self._digest(key)) for key in batch.keys})

    def _bury(self, batch: Batch, names: dict[Key, str]) -> None:
        """Delete what was to be removed when the batch was submitted, and is not deleted yet."""
        with self._lock:
            stale = [key for key in names if self._tombs.get(key, batch.serial + 1) <= batch.serial]
        if not stale:
            return
        self._store.remove([names[key] for key in stale])
        self._lookups.note(stale, here=False)
        with self._lock:
            for key in stale:
                if self._tombs.get(key, batch.serial + 1) <= batch.serial:
                    del self._tombs[key]

    def _digest(self, key: Key) -> bytes:
        return self._codec.rename(self._digester(key))

    def _name(self, digest: bytes) -> str:
        return self._path + digest.hex()

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counters.update(counts)
