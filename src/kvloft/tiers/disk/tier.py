"""The disk tier: framed blocks in preallocated segment files, bounded, checked, shared between processes."""

import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence

from kvloft.errors import ConfigError, TierError
from kvloft.keys import Namespace
from kvloft.policies import Policy, make_policy
from kvloft.request import Key
from kvloft.tiers.base import Buffer, Change, JobResult, Presence, Status, Tier, TierStats
from kvloft.tiers.buffers import check_buffers
from kvloft.tiers.disk.catalog import Catalog
from kvloft.tiers.disk.changes import Changes
from kvloft.tiers.disk.files import Files, takes_direct
from kvloft.tiers.disk.locks import LockFile
from kvloft.tiers.disk.segment import stride_of
from kvloft.tiers.disk.space import Space, slots_per_segment
from kvloft.tiers.disk.transfer import Transfer
from kvloft.tiers.disk.upkeep import Upkeep
from kvloft.tiers.disk.workers import Job, Kind, Workers

_MEMO = 1 << 17
_CLOSE_PATIENCE = 30.0


class DiskTier(Tier):
    """Blocks in a directory.

    Durability: a block whose store was answered `OK` survives the death of the process, kill -9 included. A loss of power
    may lose blocks written shortly before (what the kernel had not yet put on the medium), with `sync=True` none; in no
    case does it make a wrong block, because every load verifies the frame.

    Several processes may use one directory, for the same or for different namespaces. Each owns some of the segments and
    evicts only from these; all read all. `capacity_bytes` is the bound of the whole directory. Locks are the kernel's and
    end with their process.

    Args:
        path: the directory; made if it is not there.
        capacity_bytes: bound of everything in the directory, as the file system charges it.
        block_bytes: size of a block.
        namespace: what the blocks mean.
        policy: which block leaves; see `kvloft.policies.make_policy`. A restart knows how recently blocks were used but not
            which chain they are of, so what looks at chains has little to go by here.
        ttl: seconds after which a stored block is a miss.
        min_free_bytes: free space that the file system must keep; the tier gives space back when it falls below.
        threads: for I/O.
        queue_blocks: blocks that may wait to be written; what is offered beyond that is dropped.
        run_bytes: neighbouring blocks are moved by one system call up to this size.
        direct: bypass the page cache (O_DIRECT); None: where the file system takes it.
        sync: have the medium keep a block before it is committed (fdatasync).
        tick: seconds between rounds of upkeep; others' blocks are seen that late.
        open_timeout: seconds after which a lookup no longer waits for the index to be read, and calls the block a miss.
        files: system calls, for tests.

    Raises:
        ConfigError: a setting is wrong.
        TierError: the path cannot be used at all.
    """

    name = "disk"
    reports_changes = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity_bytes: int,
        block_bytes: int,
        namespace: Namespace,
        *,
        policy: str | type[Policy] | Policy = "lru",
        ttl: float | None = None,
        min_free_bytes: int = 0,
        threads: int = 8,
        queue_blocks: int = 4096,
        run_bytes: int = 1 << 20,
        direct: bool | None = None,
        sync: bool = False,
        tick: float = 0.5,
        open_timeout: float = 10.0,
        files: Files | None = None,
    ) -> None:
        problems = [
            f"{name}: {value!r} is too small; give at least {least}"
            for name, value, least in (
                ("block_bytes", block_bytes, 1),
                ("threads", threads, 1),
                ("queue_blocks", queue_blocks, 1),
                ("min_free_bytes", min_free_bytes, 0),
            )
            if value < least
        ]
        if ttl is not None and ttl <= 0:
            problems.append(f"ttl: {ttl!r} is not a time; give seconds, or None for no limit")
        if not problems and not slots_per_segment(capacity_bytes, block_bytes):
            problems.append(f"capacity_bytes: {capacity_bytes} has no room for one block of {block_bytes} bytes; give more")
        if problems:
            raise ConfigError(problems)
        self.path = os.path.abspath(path)
        self.capacity_bytes = capacity_bytes
        self.block_bytes = block_bytes
        self.namespace = namespace
        self._ready = False
        self._closed = False
        self._give_up = time.monotonic() + open_timeout
        self._queue_blocks = queue_blocks
        self._queued = 0
        """Blocks in store jobs without an answer."""
        self._pending = 0
        """Jobs without an answer."""
        self._answers: deque[JobResult] = deque()
        self._counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._digest = namespace.digester()
        self._digests: dict[Key, bytes] = {}
        self._changes: Changes | None = None
        files = files or Files()
        self._space = Space(
            files,
            self.path,
            os.path.join(self.path, namespace.name),
            namespace.fingerprint,
            block_bytes,
            capacity_bytes,
            min_free_bytes,
            namespace.to_json().encode(),
            self._count,
        )
        self.read_only = not self._open_directory(files)
        """The directory cannot be written: blocks are loaded, stores are dropped."""
        self.direct = self._space.direct = direct if direct is not None else self._try_direct(files)
        """Blocks bypass the page cache."""
        capacity = max(1, capacity_bytes // stride_of(block_bytes))
        self._catalog = Catalog(make_policy(policy, capacity), block_bytes, ttl)
        self._workers = Workers(threads, "kvloft-disk")
        self._upkeep = Upkeep(self._catalog, self._space, self._lock, self._counters, tick=tick, read_only=self.read_only)
        self._transfer = self._upkeep.transfer = Transfer(
            self._catalog,
            self._space,
            self._workers,
            self._lock,
            self._counters,
            self._answer,
            self._upkeep.grow,
            self._upkeep.refresh,
            run_bytes=run_bytes,
            sync=sync,
        )
        _tiers.add(self)
        self._upkeep.start(self._open_for_work, "kvloft-disk-upkeep")

    def _open_directory(self, files: Files) -> bool:
        """Make the directory and its lock file; False if it is there but cannot be written."""
        try:
            files.make_directory(self.path)
        except OSError as error:
            raise TierError(f"{self.path}: cannot be made a directory of the disk tier: {error.strerror}") from error
        try:
            self._space.lock_file = LockFile(files, self.path)
            self._space.make_home()
        except OSError as error:
            if not os.path.isdir(self._space.home):
                raise TierError(f"{self.path}: cannot be written, and holds nothing to read: {error.strerror}") from error
            if self._space.lock_file is not None:
                self._space.lock_file.close()
                self._space.lock_file = None
            self._space.troubles.tell("cannot be written, so blocks are loaded and none is stored", error)
            return False
        return True

    def _try_direct(self, files: Files) -> bool:
        try:
            return takes_direct(files, self._space.home)
        except OSError:
            return False

    # The contract.

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        now = time.time()
        locate, digests = self._catalog.locate, self._digests_of(keys)
        found = [Presence.HIT if locate(digest, now) is not None else Presence.MISS for digest in digests]
        if self._changes is not None:
            for key, digest, presence in zip(keys, digests, found, strict=True):
                if presence is Presence.HIT:
                    self._changes.found(key, digest)
        if not self._ready and time.monotonic() < self._give_up:
            return [Presence.UNKNOWN if presence is Presence.MISS else presence for presence in found]
        return found

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        work = self._job(job, Kind.STORE, keys, buffers)
        if self._changes is not None:
            self._changes.storing(job, keys, work.digests)
        self._submit(work)

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._submit(self._job(job, Kind.LOAD, keys, buffers))

    def poll(self) -> list[JobResult]:
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        if self._changes is not None:
            for answer in answers:
                self._changes.answered(answer.job)
        return answers

    def drain(self, timeout: float | None = None) -> bool:
        with self._idle:
            return self._idle.wait_for(lambda: not self._pending, timeout)

    def touch(self, keys: Sequence[Key]) -> None:
        digests = self._digests_of(keys)
        with self._lock:
            self._catalog.use(digests, time.time(), self._catalog.request())

    def remove(self, keys: Sequence[Key]) -> None:
        if not self._closed:
            self._transfer.remove(self._digests_of(keys))

    def take_changes(self) -> list[Change]:
        if self._changes is None:
            self._catalog.journal = deque()
            self._changes = Changes(self._catalog.journal, self._catalog.where)
        return self._changes.take()

    def stats(self) -> TierStats:
        with self._lock:
            segments = list(self._catalog.segments.values())
            return TierStats(
                blocks=len(self._catalog.where),
                bytes=sum(segment.charge for segment in segments),
                capacity_bytes=self.capacity_bytes,
                counters=dict(self._counters),
            )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ended = self.drain(_CLOSE_PATIENCE)
        ended = self._workers.stop(_CLOSE_PATIENCE if ended else 0.0) and ended
        ended = self._upkeep.stop(_CLOSE_PATIENCE) and ended
        if ended:
            self._release()

    # Steps.

    def _digests_of(self, keys: Sequence[Key]) -> list[bytes]:
        """Digests of keys; each is computed once as long as it is in use."""
        known, digest = self._digests, self._digest
        if len(known) > _MEMO:
            known.clear()
        found = []
        for key in keys:
            value = known.get(key)
            if value is None:
                value = known[key] = digest(key)
            found.append(value)
        return found

    def _job(self, number: int, kind: Kind, keys: Sequence[Key], buffers: Sequence[Buffer]) -> Job:
        check_buffers(self.name, keys, buffers, self.block_bytes)
        return Job(number, kind, self._catalog.request(), self._digests_of(keys), list(buffers))

    def _submit(self, job: Job) -> None:
        if self._closed:
            raise TierError(f"{self.path}: the tier is closed; open another")
        with self._lock:
            self._pending += 1
            full = job.kind is Kind.STORE and self._queued + len(job.digests) > self._queue_blocks
            if job.kind is Kind.STORE:
                self._queued += len(job.digests)
            if full or not job.digests:
                for at in range(len(job.digests)):
                    job.settle(at, Status.DROPPED)
                self._counters["dropped"] += len(job.digests)
                job.answered = True
                self._answer(job)
                return
        self._transfer.submit(job)

    def _answer(self, job: Job) -> None:
        """Needs the lock."""
        if job.kind is Kind.STORE:
            self._queued -= len(job.digests)
        self._answers.append(job.result())
        self._pending -= 1
        self._idle.notify_all()

    def _open_for_work(self) -> None:
        self._ready = True
        self._workers.open()

    def _count(self, counter: str) -> None:
        with self._lock:
            self._counters[counter] += 1

    def _release(self) -> None:
        self._upkeep.close_all()
        if self._space.lock_file is not None:
            self._space.lock_file.close()
            self._space.lock_file = None

    def _abandon(self) -> None:
        """In a forked child: the files and locks are the parent's, and there are no threads. Whatever waits for an answer
        gets none here, and one of the threads may have held the lock."""
        self._closed = True
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._pending = 0
        with contextlib.suppress(OSError):
            self._release()


_tiers: "weakref.WeakSet[DiskTier]" = weakref.WeakSet()


def _abandon_all() -> None:
    for tier in list(_tiers):
        tier._abandon()


os.register_at_fork(after_in_child=_abandon_all)
