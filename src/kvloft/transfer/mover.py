"""Moving bytes: threads that run copy jobs, and copies that find long strides in scattered pages."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Offsets: TypeAlias = NDArray[np.int64]


class Moved(NamedTuple):
    """The answer to one job.

    Args:
        job: the number its caller gave it.
        nbytes: how much was copied.
        seconds: from the first part's start to the last part's end.
        error: what the first failing part raised, or None. The other parts have run nevertheless.
    """

    job: int
    nbytes: int
    seconds: float
    error: BaseException | None


@dataclass(slots=True)
class _Job:
    number: int
    left: int
    urgent: bool
    nbytes: int = 0
    started: float = 0.0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Mover:
    """A fixed number of threads that run jobs. Each job is answered once, by `poll`. Any thread may call it.

    A job is a sequence of parts, each a function that copies something and returns how many bytes; parts of one job run
    side by side. Jobs are independent: which part runs first is not promised, except that urgent ones go before others.

    Args:
        threads: how many, at least 1.
    """

    def __init__(self, threads: int = 2) -> None:
        if threads < 1:
            raise ValueError(f"threads: {threads} is too few; give at least 1")
        self._lock = threading.Lock()
        self._submitted = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self._queue: list[tuple[bool, int, _Job, Callable[[], int]]] = []
        self._ticket = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._urgent = 0
        """Jobs of `_jobs` that are urgent."""
        self._answers: list[Moved] = []
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"kvloft-mover-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: int, parts: Sequence[Callable[[], int]], urgent: bool = False) -> None:
        """Start a job; returns at once. A job without parts is answered at once.

        Raises:
            ValueError: a job of that number is running, or the mover is closed.
        """
        with self._lock:
            if self._closed or job in self._jobs:
                raise ValueError(f"job {job}: " + ("the mover is closed" if self._closed else "already running"))
            entry = _Job(job, len(parts), urgent)
            if not parts:
                self._answers.append(Moved(job, 0, 0.0, None))
                return
            self._jobs[job] = entry
            self._urgent += urgent
            for part in parts:
                heapq.heappush(self._queue, (not urgent, next(self._ticket), entry, part))
            self._submitted.notify(len(parts))

    def poll(self, patience: float = 0.0) -> list[Moved]:
        """Answers that have come in since the last call.

        Args:
            patience: while urgent jobs run and there is no answer, wait for one, but no longer than so many seconds. A
                caller that polls in a loop otherwise keeps the interpreter lock from the threads it is waiting for.
        """
        with self._lock:
            if patience and self._urgent and not self._answers:
                self._answered.wait(patience)
            answers, self._answers = self._answers, []
        return answers

    def wait(self, jobs: Collection[int] | None = None, timeout: float | None = None) -> bool:
        """Wait until these jobs (None: all) have been run; unknown ones are taken as done. False if time ran out."""
        with self._lock:
            running = [self._jobs[job] for job in (self._jobs if jobs is None else jobs) if job in self._jobs]
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(job.done.wait(None if deadline is None else max(deadline - time.monotonic(), 0)) for job in running)

    def close(self) -> None:
        """Run what was submitted, then end the threads. Answers can still be polled. Idempotent."""
        with self._lock:
            self._closed = True
            self._submitted.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    if self._closed:
                        return
                    self._submitted.wait()
                _, _, job, part = heapq.heappop(self._queue)
                job.started = job.started or time.perf_counter()
            nbytes, error = 0, None
            try:
                nbytes = part()
            except BaseException as raised:
                error = raised
            # The part may hold buffers; its thread must not keep them while it waits for the next one.
            del part
            with self._lock:
                job.nbytes += nbytes
                job.error = job.error or error
                job.left -= 1
                if not job.left:
                    del self._jobs[job.number]
                    self._urgent -= job.urgent
                    self._answers.append(Moved(job.number, job.nbytes, time.perf_counter() - job.started, job.error))
                    job.done.set()
                    self._answered.notify_all()
            del job, error


class Shape(NamedTuple):
    """What is copied at each pair of offsets: `rows` rows of `nbytes`, `stride` apart on either side.

    One page of every layer of a KV-cache block, say, where the layers lie at equal distances.
    """

    rows: int
    nbytes: int
    source_stride: int
    target_stride: int


def copy_pages(target: Bytes, target_offsets: Offsets, source: Bytes, source_offsets: Offsets, shape: Shape) -> int:
    """Copy `shape` from each offset in `source` to the offset in `target` at the same place. Returns the bytes copied.

    Neighbours that lie equally far apart on both sides, in either direction, become one copy, made without holding the
    interpreter lock.

    Raises:
        ValueError: something lies outside of its buffer. Copies before it have been made.
    """
    targets, sources = target_offsets.tolist(), source_offsets.tolist()
    for first, last in stretches(target_offsets, source_offsets):
        count = last - first + 1
        steps = (targets[first + 1] - targets[first], sources[first + 1] - sources[first]) if count > 1 else (0, 0)
        size = (count, shape.rows, shape.nbytes)
        np.copyto(
            np.ndarray(size, np.uint8, target, targets[first], (steps[0], shape.target_stride, 1)),
            np.ndarray(size, np.uint8, source, sources[first], (steps[1], shape.source_stride, 1)),
        )
    return len(targets) * shape.rows * shape.nbytes


def stretches(*offsets: Offsets) -> list[tuple[int, int]]:
    """Cut positions into runs (first, last) along which every one of `offsets` grows by a constant step of its own."""
    count = len(offsets[0])
    if count < 3:
        return [(0, count - 1)] if count else []
    steps = np.stack([np.diff(offset) for offset in offsets])
    turns = np.flatnonzero((steps[:, 1:] != steps[:, :-1]).any(axis=0)) + 1
    runs, first = [], 0
    for turn in [*turns.tolist(), count - 1]:
        if turn > first:
            runs.append((first, turn))
            first = turn + 1
    if first < count:
        runs.append((first, count - 1))
    return runs
