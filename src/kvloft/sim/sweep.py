"""Many replays of one trace, each policy at each size, on all cores."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from ctypes import c_longlong
from typing import Any, NamedTuple, TypeAlias

from kvloft.errors import ConfigError
from kvloft.policies import make_policy, policy_names
from kvloft.sim.bound import Future, Min, replay_optimum
from kvloft.sim.replay import Capacity, Replay, ReplayResult, Survey, survey
from kvloft.traces.columns import hold
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace

BOUNDS = ("optimum", "min")
"""Names, beside those of the policies, of what knows the future."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told now and then how many block accesses are done, of how many."""

_HELD = 4_000_000
"""Block accesses up to which a trace is kept in memory between runs, about 50 bytes each; a longer one is read again."""
_TELL = 20_000
"""Block accesses between two looks at the clock."""


class _Run(NamedTuple):
    policy: str
    capacity: int
    fraction: float


class Interrupted(Exception):
    """The sweep was stopped from outside."""


class _Bench:
    """One process's share of the work: it reads the trace once, for all its runs, if it is short."""

    def __init__(self, trace: Trace, counted: Survey) -> None:
        self._trace = trace
        self._counted = counted
        self._requests: Iterable[TraceRequest] | None = None
        self._future: Future | None = None

    def run(self, run: _Run, tell: Callable[[int], None]) -> ReplayResult:
        """Replay once; `tell` hears how many block accesses are done."""
        if run.policy in BOUNDS and self._future is None:
            self._future = Future(hold(self._trace))
        if run.policy == "optimum":
            assert self._future
            result = replay_optimum(self._future, run.capacity, self._trace.name, run.fraction)
            tell(self._counted.blocks)
            return result
        policy = Min(run.capacity, self._future) if run.policy == "min" and self._future else run.policy
        replay = Replay(policy, run.capacity)
        told = 0
        for request in self._stream():
            replay.step(request)
            if replay.total - told >= _TELL:
                told = replay.total
                tell(told)
        tell(replay.total)
        return replay.result(self._trace.name, run.fraction)

    def _stream(self) -> Iterable[TraceRequest]:
        if self._counted.blocks > _HELD:
            return self._trace
        if self._requests is None:
            self._requests = list(self._trace)
        return self._requests


def sweep(
    trace: Trace,
    policies: Sequence[str],
    sizes: Sequence[Capacity],
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
) -> list[ReplayResult]:
    """Every policy at every size, in that order.

    Args:
        trace: read once more for its survey, if that is not given, and then at least once by each process.
        policies: names that `make_policy` knows, and those of `BOUNDS`.
        sizes: cache sizes.
        workers: processes; as many as there are cores if None. The results do not depend on it.
        progress: see there.
        counted: the trace's survey.

    Raises:
        ConfigError: an unknown policy, a size of less than a block, or no size or policy at all. Nothing has been run.
    """
    pairs = [(policy, size) for policy in policies for size in sizes]
    return sweep_pairs(trace, pairs, workers, progress, counted)


def sweep_pairs(
    trace: Trace,
    pairs: Sequence[tuple[str, Capacity]],
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
) -> list[ReplayResult]:
    """Each policy at its size, in that order; otherwise like `sweep`."""
    check_policies([policy for policy, _ in pairs])
    counted = counted or survey(trace)
    runs = [_Run(policy, size.of(counted.unique), size.fraction(counted.unique)) for policy, size in pairs]
    workers = min(workers or len(os.sched_getaffinity(0)), len(runs))
    total = len(runs) * counted.blocks
    tell = progress or (lambda _done, _total: None)
    if workers > 1:
        return _parallel(trace, counted, runs, workers, lambda done: tell(done, total))
    bench = _Bench(trace, counted)
    results: list[ReplayResult] = []
    for run in runs:
        results.append(bench.run(run, lambda done: tell(len(results) * counted.blocks + done, total)))
    return results


def check_policies(names: Sequence[str]) -> None:
    """Raises:
    ConfigError: one of the names is neither a policy's nor a bound's.
    """
    for name in dict.fromkeys(names):
        if name not in BOUNDS:
            try:
                make_policy(name, 1)
            except ConfigError as error:
                known = ", ".join(["default", *policy_names(), *BOUNDS])
                raise ConfigError(f"policy {name!r} is unknown; choose one of: {known}") from error


def _parallel(
    trace: Trace, counted: Survey, runs: Sequence[_Run], workers: int, tell: Callable[[int], None]
) -> list[ReplayResult]:
    context = multiprocessing.get_context("spawn")
    board = context.RawArray(c_longlong, len(runs) + 1)
    with ProcessPoolExecutor(workers, context, _begin, (trace, counted, board)) as executor:
        try:
            jobs = [executor.submit(_work, at, run) for at, run in enumerate(runs)]
            pending = set(jobs)
            while pending:
                done, pending = wait(pending, 0.1, FIRST_COMPLETED)
                for job in done:
                    job.result()
                tell(sum(board[:-1]))
            return [job.result() for job in jobs]
        except BaseException:
            board[-1] = 1
            executor.shutdown(wait=True, cancel_futures=True)
            raise


_bench: _Bench
_board: Any
"""Shared: block accesses done in each run, then whether to stop."""


def _begin(trace: Trace, counted: Survey, board: Any) -> None:
    global _bench, _board
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bench, _board = _Bench(trace, counted), board


def _work(at: int, run: _Run) -> ReplayResult:
    def tell(done: int) -> None:
        _board[at] = done
        if _board[-1]:
            raise Interrupted

    return _bench.run(run, tell)
