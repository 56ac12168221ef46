"""The cascade's end of one tier: jobs under way, breakers, measured latency."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol

from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, JobResult, Presence, Status, Tier
from kvloft.transfer.breaker import Breaker
from kvloft.transfer.latency import Latency
from kvloft.troubles import Troubles

_log = logging.getLogger(__name__)
PATIENCE = 6
"""How much longer a job may wait behind others that a tier does answer."""
_numbers = count(1)
"""Job numbers, never used twice, not even by two cascades over one tier."""


class Course(Enum):
    """Which way a job moves blocks."""

    UP = "load"
    DOWN = "store"


@dataclass(slots=True, eq=False)
class Job:
    """Blocks on their way between a tier and their slots in host memory.

    Args:
        course: up or down.
        keys: the blocks.
        slots: theirs, in the same order. They are the tier's until it answers.
        generation: the pool's at the time of submission.
        request: on whose behalf blocks are loaded.
        gone: the slots hold no residents any more: to be reclaimed, not released, when the answer comes.
    """

    course: Course
    keys: Sequence[Key]
    slots: Sequence[int]
    generation: int
    request: Request | None = None
    gone: bool = False
    number: int = 0
    since: float = 0.0
    ahead: int = 0
    """Blocks of other loads that were under way when it was submitted."""


class Observer(Protocol):
    """Hears of jobs. Called on the scheduler's thread, once a job and event: it must be quick."""

    def submitted(self, link: "Link", job: Job) -> None:
        """A job is on its way to the tier."""

    def answered(self, link: "Link", job: Job, result: JobResult) -> None:
        """It has been answered, in time or not, or was refused at once."""


class Link:
    """One tier as the cascade sees it. A tier that raises is treated as one that failed, and logged.

    Args:
        index: the tier's place in the cascade.
        tier: the tier.
        up: breaker of loads.
        down: breaker of stores: a full or read-only medium may still be read.
        latency: what its loads take.
    """

    def __init__(self, index: int, tier: Tier, up: Breaker, down: Breaker, latency: Latency) -> None:
        self.index = index
        self.tier = tier
        self.name = tier.name
        self.breakers = {Course.UP: up, Course.DOWN: down}
        self.latency = latency
        self.next_probe = 0.0
        """When a tier that is slower than recomputing may be measured again."""
        self.counters: Counter[str] = Counter()
        """Blocks, by what became of them."""
        self.observers: list[Observer] = []
        self._troubles = Troubles(f"tier {tier.name}", _log)
        self.busy: dict[Course, int] = dict.fromkeys(Course, 0)
        """Slots in the tier's hands, those of overdue jobs included."""
        self._jobs: dict[int, Job] = {}
        """Under way and in time, oldest first."""
        self._overdue: dict[int, Job] = {}
        self._answered: dict[Course, float] = dict.fromkeys(Course, 0.0)
        """When the tier last answered a job."""

    @property
    def idle(self) -> bool:
        return not self._jobs and not self._overdue

    @property
    def waiting(self) -> bool:
        """Whether an answer is expected soon; overdue ones come when they come."""
        return bool(self._jobs)

    def oldest(self, now: float) -> float:
        """Age of the oldest job without an answer, overdue ones included; 0 if there is none."""
        jobs = [next(iter(jobs.values())) for jobs in (self._jobs, self._overdue) if jobs]
        return max((now - job.since for job in jobs), default=0.0)

    def look(self, keys: Sequence[Key], now: float) -> list[Presence]:
        """What the tier knows of blocks; nothing if it cannot tell."""
        try:
            return self.tier.lookup(keys)
        except Exception as error:
            self._raised("lookup", Course.UP, now, error)
            return [Presence.MISS] * len(keys)

    def touch(self, keys: Sequence[Key], now: float) -> None:
        """Tell the tier of blocks that were used."""
        try:
            self.tier.touch(keys)
        except Exception as error:
            self._raised("touch", Course.DOWN, now, error)

    def submit(self, job: Job, view: Callable[[int], Buffer], now: float) -> JobResult | None:
        """Hand a job to the tier, with views of its slots; its answer comes from `poll`, or at once if the tier refuses to
        take it."""
        job.number, job.since, job.ahead = next(_numbers), now, self.busy[Course.UP]
        for observer in self.observers:
            observer.submitted(self, job)
        try:
            buffers = [view(slot) for slot in job.slots]
            if job.course is Course.UP:
                self.tier.submit_load(job.number, job.keys, buffers)
            else:
                self.tier.submit_store(job.number, job.keys, buffers)
        except Exception as error:
            self._raised(f"submit_{job.course.value}", job.course, now, error)
            refusal = JobResult(job.number, [Status.FAILED] * len(job.keys), 0.0, str(error))
            for observer in self.observers:
                observer.answered(self, job, refusal)
            return refusal
        self._jobs[job.number] = job
        self.busy[job.course] += len(job.keys)
        return None

    def poll(self, now: float) -> Iterator[tuple[Job, JobResult]]:
        """Jobs that ended, and their answers. Answers to no job of this link are passed over."""
        try:
            results = self.tier.poll()
        except Exception as error:
            self._raised("poll", Course.UP, now, error)
            return
        for result in results:
            in_time = result.job in self._jobs
            job = self._jobs.pop(result.job, None) or self._overdue.pop(result.job, None)
            if job is None or len(result.statuses) != len(job.keys):
                self.counters["unasked"] += 1
                if job is None:
                    continue
                result = JobResult(
                    result.job, [Status.FAILED] * len(job.keys), result.seconds, "as many statuses as blocks expected"
                )
            self.busy[job.course] -= len(job.keys)
            self._answered[job.course] = now
            if in_time:
                self._judge(job, result, now)
            for observer in self.observers:
                observer.answered(self, job, result)
            yield job, result

    def overdue(self, now: float, limit: float) -> list[Job]:
        """Jobs that have just come to wait for an answer too long: `limit` seconds while the tier answered nothing of their
        course, or `PATIENCE` times that while it was busy with others. It keeps their slots, and its breaker opens."""
        late: list[Job] = []
        for job in self._jobs.values():
            if now - job.since <= limit:
                break
            silent = now - self._answered[job.course] > limit
            if silent or now - job.since > PATIENCE * limit:
                late.append(job)
        for job in late:
            self._overdue[job.number] = self._jobs.pop(job.number)
            self.counters["overdue"] += len(job.keys)
            self.breakers[job.course].trip(now)
        if late:
            self._troubles.tell("no answer", f"to {len(late)} jobs in {limit:.3g} s; their slots are set aside")
        return late

    def surrender(self) -> list[Job]:
        """Jobs whose blocks are being dropped from host memory: from now on they only give their slots back."""
        jobs = [job for job in [*self._jobs.values(), *self._overdue.values()] if not job.gone]
        for job in jobs:
            job.gone = True
        return jobs

    def _judge(self, job: Job, result: JobResult, now: float) -> None:
        breaker = self.breakers[job.course]
        if Status.FAILED in result.statuses:
            self._troubles.tell(f"{job.course.value} failed", result.error or "no reason given")
            breaker.fail(now)
            return
        breaker.succeed()
        if job.course is Course.UP and Status.OK in result.statuses:
            self.latency.observe(job.ahead + len(job.keys), result.seconds, now)

    def _raised(self, what: str, course: Course, now: float, error: Exception) -> None:
        self._troubles.tell(f"{what} raised", repr(error), trace=True)
        self.counters["raised"] += 1
        self.breakers[course].fail(now)
