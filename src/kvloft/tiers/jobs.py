"""Who still waits for what: jobs cut into batches, their deadlines and answers."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kvloft.request import Key
from kvloft.tiers.base import Buffer, JobResult, Status


class Act(Enum):
    """What a batch does to the store."""

    STORE = "store"
    LOAD = "load"
    TOUCH = "touch"
    REMOVE = "remove"


class _State(Enum):
    WAITING = auto()
    HELD = auto()
    OVER = auto()


@dataclass(slots=True, eq=False)
class Job:
    """What a caller submitted. Statuses not known yet are FAILED."""

    number: int
    act: Act
    statuses: list[Status]
    since: float
    deadline: float
    batches: "list[Batch]" = field(default_factory=list)
    """Not over yet."""
    error: str | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """Blocks that go to the store together.

    Args:
        act: what is done with them.
        keys: the blocks.
        buffers: theirs, for stores and loads.
        places: theirs in the job.
        job: whose they are; None for touches and removals, which nobody waits for.
        serial: order of submission.
    """

    act: Act
    keys: list[Key] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    job: Job | None = None
    serial: int = 0
    bytes: int = 0
    state: _State = _State.WAITING


class Ledger:
    """Jobs under way, and the answers to those that ended. Every job is answered once, by its last batch or its deadline.

    A batch waits, for a thread or for the store, until it is over; meanwhile it may be held any number of times. Only who
    holds it may touch its buffers. One that waits is given up at the deadline of its job; one that is held is not.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes = dict.fromkeys(Act, 0)
        """Of batches not over yet."""
        self.counters: Counter[str] = Counter()
        self._clock = clock
        self._jobs: dict[int, Job] = {}
        self._answers: list[JobResult] = []
        self._changed = threading.Condition()

    def open(self, number: int, act: Act, blocks: int, seconds: float) -> Job:
        """A new job, which is answered once `start` has been called and its batches are over."""
        now = self._clock()
        return Job(number, act, [Status.FAILED] * blocks, now, now + seconds)

    def start(self, job: Job, batches: Sequence[Batch]) -> None:
        """The job consists of these. None at all: it is answered with the statuses it has."""
        with self._changed:
            self._jobs[job.number] = job
            job.batches = list(batches)
            for batch in batches:
                self.bytes[job.act] += batch.bytes
            self._end_if_over(job)

    def hold(self, batch: Batch) -> bool:
        """Claim a batch's buffers; False if it was given up."""
        with self._changed:
            self._give_up(self._clock())
            if batch.state is _State.WAITING:
                batch.state = _State.HELD
                return True
            self.counters["late"] += len(batch.keys)
            return False

    def let_go(self, batch: Batch) -> None:
        """The batch waits again."""
        with self._changed:
            batch.state = _State.WAITING

    def waits(self, batch: Batch) -> bool:
        """Whether a batch is still of use."""
        with self._changed:
            self._give_up(self._clock())
            return batch.state is not _State.OVER

    def finish(self, batch: Batch, statuses: Sequence[Status], error: str | None = None) -> bool:
        """The batch is over; False if it was so already, and the answer is dropped."""
        job = batch.job
        with self._changed:
            if job is None or batch.state is _State.OVER:
                self.counters["late"] += len(batch.keys)
                return False
            for place, status in zip(batch.places, statuses, strict=True):
                job.statuses[place] = status
            job.error = job.error or error
            self._end(batch, job)
            return True

    def take(self) -> list[JobResult]:
        """Answers since the last call."""
        with self._changed:
            self._give_up(self._clock())
            answers, self._answers = self._answers, []
            return answers

    def wait(self, timeout: float | None) -> bool:
        """Until every job is answered; False if `timeout` seconds did not suffice."""
        until = None if timeout is None else self._clock() + timeout
        with self._changed:
            while True:
                now = self._clock()
                self._give_up(now)
                if not self._jobs:
                    return True
                if until is not None and now >= until:
                    return False
                times = [job.deadline for job in self._jobs.values() if job.deadline > now]
                times += [] if until is None else [until]
                self._changed.wait(min(times) - now if times else None)

    def _give_up(self, now: float) -> None:
        for job in [job for job in self._jobs.values() if job.deadline <= now]:
            for batch in [batch for batch in job.batches if batch.state is _State.WAITING]:
                job.error = job.error or f"no answer in {job.deadline - job.since:.3g} s"
                self.counters.update(failed=len(batch.keys), timeouts=len(batch.keys))
                self._end(batch, job)

    def _end(self, batch: Batch, job: Job) -> None:
        batch.state = _State.OVER
        self.bytes[job.act] -= batch.bytes
        job.batches.remove(batch)
        self._end_if_over(job)

    def _end_if_over(self, job: Job) -> None:
        if not job.batches:
            del self._jobs[job.number]
            self._answers.append(JobResult(job.number, job.statuses, self._clock() - job.since, job.error))
            self._changed.notify_all()
