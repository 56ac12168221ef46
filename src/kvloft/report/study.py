"""A closer look at one trace under one policy at one size: when it hits, and what it comes to regret."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from kvloft.request import Key
from kvloft.sim.intake import Intake
from kvloft.sim.replay import Replay
from kvloft.traces.event import TraceRequest

DEPTHS = (0, 16, 64, 256, 1024)
"""Where classes of depth begin: blocks before this one in its prompt."""


class Slice(msgspec.Struct, frozen=True):
    """A part of the trace. Counts are of block accesses; they sum to all of the slice."""

    at: float
    """Where it begins: seconds since the trace began, or requests if the trace has no times."""
    hit: int
    regretted: int
    """Missed, though once stored: evicted since, or behind a block that was."""
    first: int
    """Never asked for before: no cache could have it."""


class Study(msgspec.Struct, frozen=True):
    """What `study` found."""

    policy: str
    capacity: int
    timed: bool
    slices: list[Slice]
    age_edges: list[float]
    """Edges of the classes of age: seconds (or requests) between two uses of a block, growing by a constant factor."""
    ages_hit: list[int]
    """Second and later uses that hit, by age."""
    ages_missed: list[int]
    """Second and later uses that missed, by age."""
    regret_ages: list[int]
    """Blocks missed after their eviction, by the time since that."""
    regret_depths: dict[str, int]
    """The same blocks by their depth in the prompt."""
    evicted: int
    evicted_for_good: int
    """Evicted and not asked for again: rightly gone."""
    lengths: list[int]
    """Blocks of each request, in order."""
    turns: dict[int, int]
    """Requests in a session: how many sessions have so many. Empty if the trace knows no sessions."""


def study(
    requests: Iterable[TraceRequest], policy: str, capacity: int, slices: int = 48, intake: Intake | None = None
) -> Study:
    """Replay once more, and watch each block.

    Args:
        requests: the trace; read once, held in memory.
        policy: a name that `make_policy` knows.
        capacity: blocks.
        slices: parts of equal duration to cut the trace into.
        intake: what the pool takes in; everything, if not given.
    """
    held = list(requests)
    timed = bool(held) and all(request.time is not None for request in held)
    clock = np.array([request.time if timed else at for at, request in enumerate(held)], float)
    watch = _Watch(Replay(policy, capacity, intake))
    outcomes = np.array([watch.step(request, now) for request, now in zip(held, clock.tolist(), strict=True)], int)
    ages = np.array(watch.ages, float).reshape(-1, 2)
    regrets = np.array([age for age, _ in watch.regrets], float)
    edges = _log_edges(np.concatenate([ages[:, 0], regrets]))
    return Study(
        policy=watch.replay.pool.policy.name,
        capacity=capacity,
        timed=timed,
        slices=_slices(clock, outcomes.reshape(-1, 3), slices),
        age_edges=edges.tolist(),
        ages_hit=_histogram(ages[ages[:, 1] == 1, 0], edges),
        ages_missed=_histogram(ages[ages[:, 1] == 0, 0], edges),
        regret_ages=_histogram(regrets, edges),
        regret_depths={name: sum(_depth(depth) == name for _, depth in watch.regrets) for name in _depth_names()},
        evicted=watch.replay.evicted,
        evicted_for_good=len(watch.gone),
        lengths=[len(request.keys) for request in held],
        turns=dict(sorted(Counter(Counter(r.session for r in held if r.session is not None).values()).items())),
    )


class _Watch:
    """A replay, and what became of each block."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.last: dict[Key, float] = {}
        self.gone: dict[Key, float] = {}
        """Blocks that have been evicted and not asked for since, and when."""
        self.ages: list[tuple[float, bool]] = []
        self.regrets: list[tuple[float, int]] = []
        """Age since eviction and depth of each block missed after it."""

    def step(self, request: TraceRequest, now: float) -> tuple[int, int, int]:
        """How many blocks hit, missed though once stored, and were never asked for before."""
        hits = self.replay.step(request)
        first = 0
        for depth, key in enumerate(request.keys):
            before = self.last.get(key)
            if before is None:
                first += 1
            else:
                self.ages.append((now - before, depth < hits))
            self.last[key] = now
            evicted = self.gone.pop(key, None)
            if evicted is not None:
                self.regrets.append((now - evicted, depth))
        self.gone.update(dict.fromkeys(self.replay.victims, now))
        return hits, len(request.keys) - hits - first, first


def _slices(clock: npt.NDArray[np.float64], outcomes: npt.NDArray[np.int64], count: int) -> list[Slice]:
    if not len(clock):
        return []
    edges = np.linspace(clock[0], clock[-1], count + 1)
    index = np.clip(np.searchsorted(edges, clock, side="right") - 1, 0, count - 1)
    sums = np.stack([np.bincount(index, outcomes[:, column], count) for column in range(3)], axis=1).astype(int)
    return [Slice(float(at), *(int(value) for value in row)) for at, row in zip(edges, sums, strict=False)]


def _log_edges(values: npt.NDArray[np.float64], per_decade: int = 4) -> npt.NDArray[np.float64]:
    positive = values[values > 0]
    if not len(positive):
        return np.array([1.0, 10.0])
    low, high = np.floor(np.log10(positive.min())), np.ceil(np.log10(positive.max() * 1.0001))
    return np.asarray(10 ** np.linspace(low, high, max(int((high - low) * per_decade), 1) + 1))


def _histogram(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> list[int]:
    """Counts by class; what is younger than the first edge counts in the first class."""
    return [int(count) for count in np.histogram(np.maximum(values, edges[0]), edges)[0]]


def _depth_names() -> list[str]:
    ends = [f"{end - 1}" for end in DEPTHS[1:]]
    return [f"{start} to {end}" for start, end in zip(DEPTHS, ends, strict=False)] + [f"{DEPTHS[-1]} and more"]


def _depth(depth: int) -> str:
    return _depth_names()[sum(depth >= start for start in DEPTHS) - 1]
