"""How blocks move between buffers and segments. Runs on the workers' threads."""

import errno
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from kvloft.tiers import frame
from kvloft.tiers.base import Status
from kvloft.tiers.disk.catalog import Catalog, Gone
from kvloft.tiers.disk.files import LONGEST, Ended, Mover
from kvloft.tiers.disk.records import BROKEN, NOTHING, make_record
from kvloft.tiers.disk.segment import SLOT_BITS, Segment
from kvloft.tiers.disk.space import Space
from kvloft.tiers.disk.workers import Batch, Job, Kind, Task, Workers

_SLOT = (1 << SLOT_BITS) - 1
JOINED = 16
"""Blocks of waiting jobs that are begun with together."""
Run: TypeAlias = Sequence[tuple[int, int]]
"""Neighbouring slots of one segment: index in the batch, place."""
Undo: TypeAlias = Callable[[Sequence[int]], None]
"""Lets go of whatever these blocks of a batch have taken and still have."""


class Transfer:
    """Carries out jobs: reserves places, writes and reads runs of neighbouring slots, verifies, settles.

    Args:
        lock: guards the catalog, the jobs and the counters; never held during I/O.
        answer: called, under the lock, once with each job whose blocks are all settled.
        grow: called, without the lock, with the number of free slots needed; makes segments as far as possible, and says
            whether there may be more.
        refresh: called, without the lock: learn what other processes have committed.
        run_bytes: how much one system call moves at most, if blocks are smaller.
        sync: have the medium keep each run before it is committed.
    """

    def __init__(
        self,
        catalog: Catalog,
        space: Space,
        workers: Workers,
        lock: threading.Lock,
        counters: Counter[str],
        answer: Callable[[Job], None],
        grow: Callable[[int], bool],
        refresh: Callable[[], None],
        *,
        run_bytes: int,
        sync: bool,
    ) -> None:
        self._catalog, self._space, self._workers, self._lock, self._counters = catalog, space, workers, lock, counters
        self._answer, self._grow, self._refresh = answer, grow, refresh
        self._run_blocks = max(1, min(run_bytes // catalog.block_bytes, LONGEST))
        self._sync = sync
        self._waiting: dict[Kind, deque[Job]] = {kind: deque() for kind in Kind}
        self._storing: set[bytes] = set()
        """Blocks that a job of this process is storing."""
        self._doomed: set[bytes] = set()
        """Those of them that were removed meanwhile."""

    def submit(self, job: Job) -> None:
        """Have the workers do a job."""
        with self._lock:
            waiting = self._waiting[job.kind]
            waiting.append(job)
            alone = len(waiting) == 1
        if alone:
            self._workers.give(job.kind, partial(self._begin, job.kind))

    def _begin(self, kind: Kind) -> None:
        """Begin with the jobs that have waited longest: what is done once for all of them need not be done for each."""
        jobs: list[Job] = []
        blocks = 0
        with self._lock:
            waiting = self._waiting[kind]
            while waiting and (not jobs or blocks + len(waiting[0].digests) <= JOINED):
                jobs.append(waiting.popleft())
                blocks += len(jobs[-1].digests)
            more = bool(waiting)
        if more:
            self._workers.give(kind, partial(self._begin, kind))
        batch = Batch(jobs)
        begin = self._begin_store if kind is Kind.STORE else self._begin_load
        self._attempt(batch, range(len(batch.digests)), partial(begin, batch))

    # Storing.

    def _begin_store(self, batch: Batch) -> None:
        lock_file, now = self._space.lock_file, time.time()
        new: list[int] = []
        with self._lock:
            for at in batch.first_of_each():
                digest = batch.digests[at]
                if self._catalog.locate(digest, now) is not None:
                    self._settle(batch, at, Status.OK, "present")
                elif lock_file is None or digest in self._storing:
                    self._settle(batch, at, Status.DROPPED, "dropped")
                else:
                    new.append(at)
            self._storing.update(batch.digests[at] for at in new)
        try:
            claims = lock_file.claim([batch.digests[at] for at in new]) if lock_file is not None and new else []
            claimed = [at for at, mine in zip(new, claims, strict=True) if mine]
            if claimed:
                self._refresh()
            blocks, evicted = self._place(batch, claimed)
        except BaseException:
            self._withdraw(batch, new)
            raise
        placed = {at for at, _ in blocks}
        idle = [at for at in new if at not in placed]
        with self._lock:
            for at in idle:
                self._settle(batch, at, Status.DROPPED, "dropped")
        if idle:
            self._let_go(batch, idle)
        for run in self._runs(blocks):
            self._write(batch, run, clear=any(place in evicted for _, place in run))

    def _place(self, batch: Batch, claimed: Sequence[int]) -> tuple[list[tuple[int, int]], set[int]]:
        """Reserve places for blocks that nobody else is writing now; those whose records are to be cleared first."""
        now = time.time()
        with self._lock:
            for at in claimed:
                if self._catalog.locate(batch.digests[at], now) is not None:
                    self._settle(batch, at, Status.OK, "present")
            new = {batch.digests[at]: at for at in claimed if not batch.is_settled(at)}
            stale = self._catalog.drop_all(new)
        if stale:
            self.finish_removal(stale)
        slots: list[tuple[bytes, int]] = []
        evicted: set[int] = set()
        offered = [batch.digests[at] for at in batch.first_of_each()]
        rest, may_grow = [*new], True
        while rest and may_grow:
            may_grow = len(rest) <= len(self._catalog.free) or self._grow(len(rest))
            with self._lock:
                room = self._catalog.reserve(rest, offered, batch.request, evict=not may_grow)
                self._counters["evicted"] += len(room.evicted)
            slots += room.slots
            evicted.update(room.evicted)
            rest = rest[len(room.slots) :]
        return sorted(((new[digest], place) for digest, place in slots), key=lambda block: block[1]), evicted

    def _write(self, batch: Batch, run: Run, *, clear: bool = False) -> None:
        segment, slot = self._catalog.segments[run[0][1] >> SLOT_BITS], run[0][1] & _SLOT
        now = time.time()

        def start(mover: Mover, ended: Ended) -> None:
            digests = [batch.digests[at] for at, _ in run]
            payloads = [batch.buffers[at] for at, _ in run]
            segment.write(mover, ended, slot, digests, payloads, now, self._space.direct, self._sync, clear)

        end = partial(self._end_write, batch, segment, run, now, clear)
        self._move(batch, run, start, end, partial(self._withdraw, batch))

    def _end_write(
        self, batch: Batch, segment: Segment, run: Run, now: float, clear: bool, how: int | bytes, number: int
    ) -> None:
        if number or how != len(run) * segment.stride:
            if len(run) > 1:
                for block in run:
                    self._write(batch, [block], clear=clear)
            else:
                self._fail_write(batch, *run[0], _error(number))
            return
        digests = [batch.digests[at] for at, _ in run]
        with self._lock:
            self._catalog.commit(digests, now, batch.request)
            unwanted = self._catalog.drop_all(digest for digest in digests if digest in self._doomed)
            for at, _ in run:
                self._settle(batch, at, Status.OK, "stored")
            self._counters["bytes_written"] += len(run) * segment.stride
        if unwanted:
            self.finish_removal(unwanted)
        self._let_go(batch, [at for at, _ in run])

    def _fail_write(self, batch: Batch, at: int, place: int, error: OSError) -> None:
        self._clear([place], broken=True)
        with self._lock:
            self._catalog.abandon(batch.digests[at])
            self._settle(batch, at, Status.FAILED, "failed", f"writing a block: {error}")
        self._space.troubles.tell("writing a block", error)
        self._let_go(batch, [at])

    def _withdraw(self, batch: Batch, indices: Sequence[int]) -> None:
        """These blocks are not written after all: their places are free again."""
        with self._lock:
            gone = self._catalog.withdraw(batch.digests[at] for at in indices)
        try:
            self.finish_removal(gone)
        finally:
            self._let_go(batch, indices)

    def _let_go(self, batch: Batch, indices: Sequence[int]) -> None:
        """Others may write these blocks now, and this process again."""
        digests = [batch.digests[at] for at in indices]
        try:
            if self._space.lock_file is not None and digests:
                self._space.lock_file.release(digests)
        except OSError as error:
            self._space.troubles.tell("letting others write blocks", error)
        with self._lock:
            self._storing.difference_update(digests)
            self._doomed.difference_update(digests)

    # Loading.

    def _begin_load(self, batch: Batch) -> None:
        now = time.time()
        found: list[tuple[int, int]] = []
        segments: dict[int, Segment] = {}
        with self._lock:
            for at, digest in enumerate(batch.digests):
                place = self._catalog.locate(digest, now)
                if place is None:
                    self._settle(batch, at, Status.MISS, "missed")
                else:
                    segments[place >> SLOT_BITS] = self._catalog.pin(place)
                    found.append((at, place))
        found.sort(key=lambda block: block[1])
        for run in self._runs(found):
            self._read(batch, segments[run[0][1] >> SLOT_BITS], run)

    def _read(self, batch: Batch, segment: Segment, run: Run, *, again: bool = False) -> None:
        def start(mover: Mover, ended: Ended) -> None:
            digests = [batch.digests[at] for at, _ in run]
            payloads = [batch.buffers[at] for at, _ in run]
            segment.read(mover, ended, run[0][1] & _SLOT, digests, payloads, self._space.direct)

        end = partial(self._end_read, batch, segment, run, again)
        self._move(batch, run, start, end, partial(self._unpin, batch, segment, run))

    def _end_read(self, batch: Batch, segment: Segment, run: Run, again: bool, how: int | bytes, number: int) -> None:
        if number or isinstance(how, int):
            if len(run) > 1:
                for block in run:
                    self._read(batch, segment, [block])
            else:
                self._fail_read(batch, segment, *run[0], _error(number))
            return
        defects = frame.defects(how)
        whole = len(defects)
        with self._lock:
            for (at, place), defect in zip(run, defects, strict=False):
                if defect is None:
                    self._counters["bytes_read"] += segment.stride
                    self._settle(batch, at, Status.OK, "loaded")
                    self._catalog.unpin(place, segment)
        for (at, place), defect in zip(run, defects, strict=False):
            if defect is not None and not segment.owned and not again:
                # Its owner may have been replacing the block, perhaps by itself.
                self._read(batch, segment, [(at, place)], again=True)
            elif defect is not None:
                self._reject(batch, segment, at, place, defect)
        if len(run) == 1 and not whole:
            self._reject(batch, segment, *run[0], frame.Defect.TRUNCATED)
        elif whole < len(run):
            # The medium may have failed in the middle: what follows is read again, block by block if need be.
            for rest in [run[whole:]] if whole else [[block] for block in run]:
                self._read(batch, segment, rest)

    def _reject(self, batch: Batch, segment: Segment, at: int, place: int, defect: frame.Defect) -> None:
        """A frame that did not verify is a miss. It is damaged if its record still promises the block, or if it lies here as
        far as its owner, this process, knows: then the record is damaged too. Otherwise it was replaced meanwhile."""
        digest = batch.digests[at]
        promised = segment.promises(place & _SLOT, digest)
        with self._lock:
            gone = self._catalog.drop(digest, place) if promised or segment.owned else None
            damaged = promised or gone is not None
            if damaged:
                self._counters["corrupt"] += 1
            else:
                self._catalog.doubt(digest, place)
            self._counters[f"corrupt_{defect}" if damaged else "raced"] += 1
            self._catalog.unpin(place, segment)
            self._settle(batch, at, Status.MISS, "missed")
        if damaged:
            self._space.troubles.tell("a damaged block was found and dropped", f"{defect}, in {segment.name}")
        self.finish_removal([gone] if gone else [])

    def _fail_read(self, batch: Batch, segment: Segment, at: int, place: int, error: OSError) -> None:
        with self._lock:
            gone = self._catalog.drop(batch.digests[at], place)
            self._catalog.unpin(place, segment)
            self._settle(batch, at, Status.FAILED, "failed", f"reading a block: {error}")
        self._space.troubles.tell("reading a block", error)
        self.finish_removal([gone] if gone else [], broken=True)

    def _unpin(self, batch: Batch, segment: Segment, run: Run, indices: Sequence[int]) -> None:
        """Those of these blocks of a run that have not been settled are not read after all."""
        with self._lock:
            for at, place in run:
                if at in indices and not batch.is_settled(at):
                    self._catalog.unpin(place, segment)

    # Removing.

    def remove(self, digests: Sequence[bytes]) -> None:
        """Remove blocks: at once from memory, from the medium as soon as a worker gets to it."""
        with self._lock:
            self._doomed.update(digest for digest in digests if digest in self._storing)
            gone = self._catalog.drop_all(digests)
            self._catalog.renounced.update(digests if not self._catalog.complete else _foreign(gone))
            self._counters["removed"] += len(gone)
        if gone:
            self._workers.give(Kind.STORE, partial(self.finish_removal, gone))

    def finish_removal(self, gone: Sequence[Gone], *, broken: bool = False) -> None:
        """Tell the medium: clear the records of owned places and free them, or retire them if `broken`; ask the owner of
        others."""
        for digest, place, owned in gone:
            segment = self._catalog.segments.get(place >> SLOT_BITS)
            if not owned and segment is not None:
                try:
                    segment.condemn(place & _SLOT, digest)
                except OSError as error:
                    self._fail_index(error)
        mine = [place for _, place, owned in gone if owned]
        self._clear(mine, broken=broken)
        with self._lock:
            for place in mine:
                (self._catalog.retire if broken else self._catalog.vacate)(place)
            if self._catalog.complete:
                self._catalog.renounced.difference_update(_foreign(gone))

    def _clear(self, places: Sequence[int], *, broken: bool = False) -> None:
        """Write that places hold nothing. A failure is counted; a record that stays is found out when it is read."""
        if broken:
            self._count("broken_slots", len(places))
        for run in self._runs([(0, place) for place in sorted(places)], longest=1024):
            segment, slot = self._catalog.segments.get(run[0][1] >> SLOT_BITS), run[0][1] & _SLOT
            records = [make_record(b"", slot + at, 0.0, 0, BROKEN) if broken else NOTHING for at in range(len(run))]
            try:
                if segment is not None:
                    segment.write_records(slot, b"".join(records))
            except OSError as error:
                self._fail_index(error)

    def _fail_index(self, error: OSError) -> None:
        self._count("index_failed")
        self._space.troubles.tell("writing an index", error)

    # Steps.

    def _runs(self, blocks: Sequence[tuple[int, int]], longest: int = 0) -> Iterator[Run]:
        """Split blocks with ascending places into runs of neighbours in one segment."""
        run: list[tuple[int, int]] = []
        for block in blocks:
            if run and (block[1] != run[-1][1] + 1 or len(run) >= (longest or self._run_blocks)):
                yield run
                run = []
            run.append(block)
        if run:
            yield run

    def _move(self, batch: Batch, run: Run, start: Callable[[Mover, Ended], None], end: Ended, undo: Undo) -> None:
        """Start to move blocks of a batch, and try `end` with what comes of it; `undo`, if one of these has a fault."""
        indices = [at for at, _ in run]

        def ended(how: int | bytes, number: int) -> None:
            batch.moving.difference_update(indices)
            self._attempt(batch, indices, partial(end, how, number), undo)

        def begin() -> None:
            try:
                self._workers.move(batch.kind, start, ended)
            except OSError as error:
                end(0, error.errno or errno.EIO)
            else:
                batch.moving.update(indices)

        self._attempt(batch, indices, begin, undo)

    def _attempt(self, batch: Batch, indices: Sequence[int], task: Task, undo: Undo | None = None) -> None:
        """Do a task for some blocks of a batch, and answer the jobs whose last block that settled. Whatever happens, all
        jobs are answered, but none before the medium has let its blocks alone."""
        try:
            task()
        except Exception as error:
            self._give_up(batch, [at for at in indices if at not in batch.moving], error, undo)
        with self._lock:
            done = [job for job in batch.jobs if not job.left and not job.answered]
            try:
                if done and batch.is_done():
                    self._catalog.use(batch.good(), time.time(), batch.request, stored=batch.kind is Kind.STORE)
            except Exception:
                # A fault of the policy; the blocks are where they should be all the same.
                self._counters["policy_failed"] += 1
            finally:
                for job in done:
                    job.answered = True
                    self._answer(job)

    def _give_up(self, batch: Batch, indices: Sequence[int], fault: Exception, undo: Undo | None) -> None:
        """The code has a fault: blocks fail, and leave nothing taken."""
        name = batch.kind.name.lower()
        self._space.troubles.tell(name, repr(fault))
        try:
            if undo is not None:
                undo(indices)
        except Exception as another:
            self._space.troubles.tell(name, repr(another))
        with self._lock:
            for at in indices:
                self._settle(batch, at, Status.FAILED, "failed", repr(fault))

    def _settle(self, batch: Batch, at: int, status: Status, counter: str, error: str | None = None) -> None:
        """Settle a block, and count it. Needs the lock."""
        if batch.settle(at, status, error):
            self._counters[counter] += 1

    def _count(self, counter: str, n: int = 1) -> None:
        with self._lock:
            self._counters[counter] += n


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number)) if number else OSError(errno.EIO, "the medium took not all of it")


def _foreign(gone: Sequence[Gone]) -> list[bytes]:
    return [digest for digest, _, owned in gone if not owned]
