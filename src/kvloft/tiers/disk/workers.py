"""Jobs, and the bounded pool of threads that works on them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from kvloft.tiers.base import Buffer, JobResult, Status

Task: TypeAlias = Callable[[], None]


class Kind(Enum):
    """What a job does."""

    STORE = "store"
    LOAD = "load"


class Job:
    """A job until its answer. Its blocks are settled one by one, by several threads, under the tier's lock."""

    def __init__(self, number: int, kind: Kind, digests: Sequence[bytes], buffers: Sequence[Buffer]) -> None:
        self.number, self.kind, self.digests, self.buffers = number, kind, digests, buffers
        self.error: str | None = None
        self.left = len(digests)
        self.answered = False
        self.duplicates = len(set(digests)) < len(digests)
        self._statuses: list[Status | None] = [None] * len(digests)
        self._start = time.monotonic()

    def first_of_each(self) -> list[int]:
        """Indices of the distinct blocks, in order."""
        return sorted({digest: at for at, digest in reversed([*enumerate(self.digests)])}.values())

    def is_settled(self, at: int) -> bool:
        return self._statuses[at] is not None

    def settle(self, at: int, status: Status, error: str | None = None) -> bool:
        """Say how one block ended; False if that was said before."""
        if self._statuses[at] is not None:
            return False
        self._statuses[at] = status
        self.left -= 1
        self.error = self.error or error
        return True

    def good(self) -> list[bytes]:
        """Blocks that ended well, in order."""
        return [digest for digest, status in zip(self.digests, self._statuses, strict=True) if status is Status.OK]

    def result(self) -> JobResult:
        statuses = [status or Status.FAILED for status in self._statuses]
        return JobResult(self.number, statuses, time.monotonic() - self._start, self.error)


class Workers:
    """Threads that run tasks: loads before stores, but one thread prefers stores, so that neither starves.

    Tasks wait until `open` was called. A task must not raise.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._queues: dict[Kind, deque[Task]] = {kind: deque() for kind in Kind}
        self._ready = threading.Condition()
        self._open = False
        self._stop = False
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(Kind.STORE if i == 0 and threads > 1 else Kind.LOAD,),
                name=f"{name}-{i}",
                daemon=True,
            )
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def open(self) -> None:
        """Start working on what was given and will be."""
        with self._ready:
            self._open = True
            self._ready.notify_all()

    def give(self, kind: Kind, tasks: Sequence[Task], *, first: bool = False) -> None:
        """Queue tasks, at the end or, `first`, before all others of their kind."""
        with self._ready:
            if first:
                self._queues[kind].extendleft(reversed(tasks))
            else:
                self._queues[kind].extend(tasks)
            self._ready.notify(len(tasks))

    def stop(self, timeout: float) -> bool:
        """Let threads end once their queues are empty; False if some are still busy after `timeout` seconds."""
        with self._ready:
            self._stop = True
            self._open = True
            self._ready.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, prefers: Kind) -> None:
        own = self._queues[prefers]
        other = self._queues[Kind.LOAD if prefers is Kind.STORE else Kind.STORE]
        while True:
            with self._ready:
                while not (self._open and (own or other)):
                    if self._stop:
                        return
                    self._ready.wait()
                task = own.popleft() if own else other.popleft()
            task()
            del task
