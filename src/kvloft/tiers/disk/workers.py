"""Jobs, and the bounded pool of threads that works on them."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from queue import SimpleQueue
from typing import TypeAlias

from kvloft.request import Request
from kvloft.tiers.base import Buffer, JobResult, Status

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
    """Threads that run tasks: loads before stores, but one thread prefers stores, so that neither starves.

    Tasks wait until `open` was called. One that raises is a fault of the code: it is reported as Python reports faults of
    threads, and the thread goes on.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._queues: dict[Kind, deque[Task]] = {kind: deque() for kind in Kind}
        self._tokens: SimpleQueue[None] = SimpleQueue()
        """As many as there are tasks, once open; one more for each thread that is to end."""
        self._early = 0
        """Tasks that wait for `open`."""
        self._opening = threading.Lock()
        self._is_open = False
        self._threads = [
            threading.Thread(target=self._run, args=(self._order(i, threads),), name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def open(self) -> None:
        """Start working on what was given and will be."""
        with self._opening:
            self._is_open = True
            early, self._early = self._early, 0
        for _ in range(early):
            self._tokens.put(None)

    def give(self, kind: Kind, tasks: Sequence[Task], *, first: bool = False) -> None:
        """Queue tasks, at the end or, `first`, before all others of their kind."""
        if first:
            self._queues[kind].extendleft(reversed(tasks))
        else:
            self._queues[kind].extend(tasks)
        with self._opening:
            if not self._is_open:
                self._early += len(tasks)
                return
        for _ in tasks:
            self._tokens.put(None)

    def stop(self, timeout: float) -> bool:
        """Let threads end once their queues are empty; False if some are still busy after `timeout` seconds."""
        self.open()
        for _ in self._threads:
            self._tokens.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _order(self, thread: int, threads: int) -> list[deque[Task]]:
        loads, stores = self._queues[Kind.LOAD], self._queues[Kind.STORE]
        return [stores, loads] if thread == 0 and threads > 1 else [loads, stores]

    def _run(self, queues: list[deque[Task]]) -> None:
        while True:
            self._tokens.get()
            task = _take(queues)
            if task is None:
                return
            try:
                task()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            del task


def _take(queues: list[deque[Task]]) -> Task | None:
    for queue in queues:
        try:
            return queue.popleft()
        except IndexError:
            continue
    return None
