"""Jobs, and the bounded number of threads that works on them."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TypeAlias

from kvloft.request import Request
from kvloft.tiers.base import Buffer, JobResult, Status
from kvloft.tiers.disk.files import Ended, Mover

Task: TypeAlias = Callable[[], None]


class Kind(Enum):
    """What a job does."""

    STORE = "store"
    LOAD = "load"


class Job:
    """A job until its answer. Its blocks are settled one by one, by several threads, under the tier's lock."""

    def __init__(
        self, number: int, kind: Kind, request: Request, digests: Sequence[bytes], buffers: Sequence[Buffer]
    ) -> None:
        self.number, self.kind, self.request, self.digests, self.buffers = number, kind, request, digests, buffers
        self.statuses: list[Status | None] = [None] * len(digests)
        self.error: str | None = None
        self.left = len(digests)
        self.answered = False
        self._start = time.monotonic()

    def settle(self, at: int, status: Status, error: str | None = None) -> None:
        """Say how one block ended, once."""
        self.statuses[at] = status
        self.left -= 1
        self.error = self.error or error

    def result(self) -> JobResult:
        statuses = [status or Status.FAILED for status in self.statuses]
        return JobResult(self.number, statuses, time.monotonic() - self._start, self.error)


class Batch:
    """Jobs of one kind that are worked on together. What is done to it needs the tier's lock."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.kind, self.request = jobs, jobs[0].kind, jobs[0].request
        self.digests = [digest for job in jobs for digest in job.digests]
        self.buffers = [buffer for job in jobs for buffer in job.buffers]
        self._owners = [(job, at) for job in jobs for at in range(len(job.digests))]
        self._duplicates = self.kind is Kind.STORE and len(set(self.digests)) < len(self.digests)
        self.moving: set[int] = set()
        """Blocks that the medium is at. Changed by the kind's thread alone, without the lock."""

    def first_of_each(self) -> list[int]:
        """Indices of the distinct blocks, in order."""
        if not self._duplicates:
            return list(range(len(self.digests)))
        return sorted({digest: at for at, digest in reversed([*enumerate(self.digests)])}.values())

    def is_settled(self, at: int) -> bool:
        job, index = self._owners[at]
        return job.statuses[index] is not None

    def settle(self, at: int, status: Status, error: str | None = None) -> bool:
        """Say how one block ended, in a store of its duplicates too; False if that was said before."""
        if self.is_settled(at):
            return False
        same = [at]
        if self._duplicates:
            same = [other for other, digest in enumerate(self.digests) if digest == self.digests[at]]
        for other in same:
            job, index = self._owners[other]
            job.settle(index, status, error)
        return True

    def is_done(self) -> bool:
        return not any(job.left for job in self.jobs)

    def good(self) -> list[bytes]:
        """Blocks that ended well, in order."""
        owners = zip(self.digests, self._owners, strict=True)
        return [digest for digest, (job, at) in owners if job.statuses[at] is Status.OK]


class Workers:
    """A thread for each kind of job, which runs tasks and hears how moves of that kind ended; and the threads that move.

    Only the moves wait for the medium as a rule, and they need no interpreter: of two threads that take turns with it, each
    costs the other more than it gains. Tasks wait until `open` was called. One that raises is a fault of the code: it is
    reported as Python reports faults of threads, and the thread goes on.

    Args:
        threads: that move.
        name: of all, for people.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._mover = Mover(threads)
        self._tasks: dict[Kind, deque[Task]] = {kind: deque() for kind in Kind}
        self._moving = dict.fromkeys(Kind, 0)
        """Moves that have not ended."""
        self._opened = threading.Event()
        self._stopping = self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), name=f"{name}-{kind.value}", daemon=True) for kind in Kind
        ]
        for thread in self._threads:
            thread.start()

    def open(self) -> None:
        """Start working on what was given and will be."""
        self._opened.set()

    def give(self, kind: Kind, task: Task) -> None:
        """Have a task run, after all others of its kind."""
        self._tasks[kind].append(task)
        self._wake(kind)

    def move(self, kind: Kind, start: Callable[[Mover, Ended], None], ended: Ended) -> None:
        """Start a move; how it ended is heard by the kind's thread, which must be the caller's.

        Raises:
            OSError: it could not be started.
        """
        start(self._mover, ended)
        self._moving[kind] += 1

    def stop(self, timeout: float) -> bool:
        """Let threads end once all is done; False if some are still busy after `timeout` seconds."""
        self._stopping = True
        self.open()
        for kind in Kind:
            self._wake(kind)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._stopped = True
        self._mover.close()
        return True

    def _wake(self, kind: Kind) -> None:
        if not self._stopped:
            self._mover.wake(kind is Kind.STORE)

    def _run(self, kind: Kind) -> None:
        self._opened.wait()
        tasks = self._tasks[kind]
        while tasks or self._moving[kind] or not self._stopping:
            for ended, how, error in self._mover.wait(kind is Kind.STORE):
                self._moving[kind] -= 1
                self._do(partial(ended, how, error))
            if tasks:
                self._do(tasks.popleft())
            if tasks:
                self._wake(kind)

    def _do(self, task: Task) -> None:
        try:
            task()
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
