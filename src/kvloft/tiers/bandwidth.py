"""Bandwidth of any tier: blocks stored and loaded with a given number in flight."""

import mmap
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvloft.errors import TierError
from kvloft.request import Key
from kvloft.tiers import Buffer, Status, Tier

_PAUSE = 0.0001
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one pass over the blocks took.

    Args:
        bytes: moved well.
        seconds: from the first submission to the last answer.
        statuses: blocks by how they ended.
    """

    bytes: int
    seconds: float
    statuses: Counter[Status] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


def make_buffers(block_bytes: int, count: int) -> list[Buffer]:
    """Page-aligned blocks of bytes that no compression shrinks, one after the other as in a host arena."""
    arena = memoryview(mmap.mmap(-1, block_bytes * count))
    noise = os.urandom(min(1 << 20, arena.nbytes))
    for start in range(0, arena.nbytes, len(noise)):
        arena[start : start + len(noise)] = noise[: arena.nbytes - start]
    return [arena[at * block_bytes : (at + 1) * block_bytes] for at in range(count)]


def store_all(tier: Tier, keys: Sequence[Key], buffers: Sequence[Buffer], job_blocks: int = 1) -> Run:
    """Store blocks, as many in flight as there are buffers, `job_blocks` in a job.

    Raises:
        TierError: the tier stopped answering.
    """
    return _run(tier, keys, buffers, job_blocks, load=False)


def load_all(tier: Tier, keys: Sequence[Key], buffers: Sequence[Buffer], job_blocks: int = 1) -> Run:
    """Load blocks; see `store_all`."""
    return _run(tier, keys, buffers, job_blocks, load=True)


def _run(tier: Tier, keys: Sequence[Key], buffers: Sequence[Buffer], job_blocks: int, *, load: bool) -> Run:
    submit = tier.submit_load if load else tier.submit_store
    job_blocks = min(job_blocks, len(buffers))
    idle = list(range(len(buffers) // job_blocks))
    busy: dict[int, int] = {}
    statuses: Counter[Status] = Counter()
    next_key = number = 0
    start = heard = time.perf_counter()
    while busy or next_key < len(keys):
        while idle and next_key < len(keys):
            lane = busy[number] = idle.pop()
            some = keys[next_key : next_key + job_blocks]
            submit(number, some, buffers[lane * job_blocks : lane * job_blocks + len(some)])
            next_key += len(some)
            number += 1
        answers = tier.poll()
        for answer in answers:
            idle.append(busy.pop(answer.job))
            statuses.update(answer.statuses)
        if answers:
            heard = time.perf_counter()
        elif time.perf_counter() - heard > _PATIENCE:
            raise TierError(f"the tier {tier.name!r} has not answered for {_PATIENCE:.0f} s; {len(busy)} jobs are in flight")
        else:
            time.sleep(_PAUSE)
    seconds = time.perf_counter() - start
    return Run(statuses[Status.OK] * buffers[0].nbytes, seconds, statuses)
