"""Tiers around tiers: they fail, dawdle or trickle on purpose, for tests and for what-if."""

import math
import random
import threading
import time
from collections import deque
from collections.abc import Sequence

from kvloft.errors import ConfigError
from kvloft.request import Key
from kvloft.tiers.base import Buffer, Change, JobResult, Presence, Status, Tier, TierStats


class Wrapper(Tier):
    """Passes everything on to another tier. One thread at a time, like any tier's caller."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.name = tier.name
        self.capacity_bytes = tier.capacity_bytes
        self.remote = tier.remote
        self.reports_changes = tier.reports_changes

    def lookup(self, keys: Sequence[Key]) -> list[Presence]:
        return self.tier.lookup(keys)

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self.tier.submit_store(job, keys, buffers)

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self.tier.submit_load(job, keys, buffers)

    def poll(self) -> list[JobResult]:
        return self.tier.poll()

    def drain(self, timeout: float | None = None) -> bool:
        return self.tier.drain(timeout)

    def touch(self, keys: Sequence[Key]) -> None:
        self.tier.touch(keys)

    def remove(self, keys: Sequence[Key]) -> None:
        self.tier.remove(keys)

    def take_changes(self) -> list[Change]:
        return self.tier.take_changes()

    def stats(self) -> TierStats:
        return self.tier.stats()

    def close(self) -> None:
        self.tier.close()


class Faulty(Wrapper):
    """A tier whose medium fails now and then. The jobs that fail never reach the tier below.

    Args:
        tier: the one below.
        store: share of store jobs that fail, 0 to 1; may be changed at any time.
        load: the same for loads.
        seed: of the dice.
    """

    def __init__(self, tier: Tier, *, store: float = 0.0, load: float = 0.0, seed: int = 0) -> None:
        super().__init__(tier)
        self.store, self.load = store, load
        self._dice = random.Random(seed)
        self._failed: deque[JobResult] = deque()

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        if not self._fail(self.store, job, len(keys)):
            super().submit_store(job, keys, buffers)

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        if not self._fail(self.load, job, len(keys)):
            super().submit_load(job, keys, buffers)

    def poll(self) -> list[JobResult]:
        failed = [*self._failed]
        self._failed.clear()
        return failed + super().poll()

    def _fail(self, share: float, job: int, blocks: int) -> bool:
        fails = self._dice.random() < share
        if fails:
            self._failed.append(JobResult(job, [Status.FAILED] * blocks, 0.0, "injected by Faulty"))
        return fails


class _Late(Wrapper):
    """A tier whose answers come later than they are there. Nothing sleeps: they are held back until their time."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier)
        self._submitted: dict[int, tuple[float, int]] = {}
        """Time of submission and bytes of each job in flight."""
        self._held: list[tuple[float, JobResult]] = []
        self._changed = threading.Condition()

    def _due(self, submitted: float, nbytes: int) -> float:
        """When a job's answer may be seen (`time.monotonic`), now that it is there."""
        raise NotImplementedError

    def submit_store(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._submitted[job] = (time.monotonic(), sum(buffer.nbytes for buffer in buffers))
        super().submit_store(job, keys, buffers)

    def submit_load(self, job: int, keys: Sequence[Key], buffers: Sequence[Buffer]) -> None:
        self._submitted[job] = (time.monotonic(), sum(buffer.nbytes for buffer in buffers))
        super().submit_load(job, keys, buffers)

    def poll(self) -> list[JobResult]:
        self._take_answers()
        now = time.monotonic()
        ready = [(due, result) for due, result in self._held if due <= now]
        self._held = [(due, result) for due, result in self._held if due > now]
        return [result._replace(seconds=max(result.seconds, self._age(result.job, now))) for _, result in ready]

    def drain(self, timeout: float | None = None) -> bool:
        end = math.inf if timeout is None else time.monotonic() + timeout
        if not super().drain(timeout):
            return False
        self._take_answers()
        last = max((due for due, _ in self._held), default=0.0)
        with self._changed:
            while (now := time.monotonic()) < min(last, end):
                self._changed.wait(min(last, end) - now if min(last, end) < math.inf else None)
        return last <= end

    def release(self) -> None:
        """Show all answers that are there, late or not: the medium has come back to life."""
        self._held = [(0.0, result) for _, result in self._held]
        with self._changed:
            self._changed.notify_all()

    def _take_answers(self) -> None:
        for result in super().poll():
            submitted, nbytes = self._submitted[result.job]
            self._held.append((self._due(submitted, nbytes), result))

    def _age(self, job: int, now: float) -> float:
        return now - self._submitted.pop(job)[0]


class Slow(_Late):
    """A tier with latency. `math.inf` hangs it: answers come only after `delay` was changed and `release` called.

    Args:
        tier: the one below.
        delay: seconds from a job's submission to its answer, at least; may be changed, for jobs not yet done below.
    """

    def __init__(self, tier: Tier, delay: float) -> None:
        super().__init__(tier)
        self.delay = delay

    def _due(self, submitted: float, nbytes: int) -> float:
        return submitted + self.delay

    def close(self) -> None:
        self.delay = 0.0
        self.release()
        super().close()


class Throttled(_Late):
    """A tier with little bandwidth: jobs are answered one after the other, none faster than its bytes allow.

    Args:
        tier: the one below.
        bytes_per_second: of loads and stores together.
    """

    def __init__(self, tier: Tier, bytes_per_second: float) -> None:
        if bytes_per_second <= 0:
            raise ConfigError(f"bytes_per_second: {bytes_per_second!r} moves nothing; give a number above 0")
        super().__init__(tier)
        self.bytes_per_second = bytes_per_second
        self._busy_until = 0.0

    def _due(self, submitted: float, nbytes: int) -> float:
        self._busy_until = max(self._busy_until, submitted) + nbytes / self.bytes_per_second
        return self._busy_until
