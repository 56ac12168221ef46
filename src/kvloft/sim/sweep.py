"""Many replays of one trace, each policy at each size, on all cores."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_longlong
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from kvloft.errors import ConfigError, KvloftError
from kvloft.policies import is_policy, load_policy, policy_names
from kvloft.sim.bound import Future, Min, replay_optimum
from kvloft.sim.intake import Intake
from kvloft.sim.latency import Machine, Outcome, Simulation, TimedResult, TimedSlice
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
    machine: Machine | None = None
    speed: float = 1.0
    starts: Sequence[float] = ()
    intake: Intake | None = None


class Interrupted(Exception):
    """The sweep was stopped from outside."""


class _Bench:
    """One process's share of the work: it reads the trace once, for all its runs, if it is short."""

    def __init__(self, trace: Trace, counted: Survey) -> None:
        self._trace = trace
        self._counted = counted
        self._requests: Iterable[TraceRequest] | None = None
        self._future: Future | None = None

    def run(self, run: _Run, tell: Callable[[int], None]) -> ReplayResult | TimedResult:
        """Replay once; `tell` hears how many block accesses are done."""
        if run.machine:
            return self._run_timed(run, run.machine, tell)
        if run.policy in BOUNDS and self._future is None:
            self._future = Future(hold(self._trace))
        if run.policy == "optimum":
            assert self._future
            result = replay_optimum(self._future, run.capacity, self._trace.name, run.fraction)
            tell(self._counted.blocks)
            return result
        if run.policy == "min" and self._future:
            replay = Replay(Min(run.capacity, self._future), run.capacity)
        else:
            replay = Replay(run.policy, run.capacity, run.intake)
        told = 0
        for request in self._stream():
            replay.step(request)
            if replay.total - told >= _TELL:
                told = replay.total
                tell(told)
        tell(replay.total)
        return replay.result(self._trace.name, run.fraction)

    def _run_timed(self, run: _Run, machine: Machine, tell: Callable[[int], None]) -> TimedResult:
        done = told = 0
        slices = _Slices(run.starts)

        def note(outcome: Outcome) -> None:
            nonlocal done, told
            slices.add(outcome)
            done += outcome.blocks
            if done - told >= _TELL:
                told = done
                tell(done)

        requests = (
            request if request.time is None else msgspec.structs.replace(request, time=request.time / run.speed)
            for request in self._stream()
        )
        result = Simulation(machine, run.policy, run.capacity, done=note, intake=run.intake).run(requests)
        tell(done)
        return msgspec.structs.replace(
            result, trace=self._trace.name, capacity_fraction=run.fraction, slices=slices.result()
        )

    def _stream(self) -> Iterable[TraceRequest]:
        if self._counted.blocks > _HELD:
            return self._trace
        if self._requests is None:
            self._requests = list(self._trace)
        return self._requests


class _Slices:
    """Outcomes, summed over parts of the time that begin at `starts`."""

    def __init__(self, starts: Sequence[float]) -> None:
        self._starts = starts
        self._sums = np.zeros((len(starts), 6))

    def add(self, outcome: Outcome) -> None:
        if self._starts:
            at = max(int(np.searchsorted(self._starts, outcome.arrival, "right")) - 1, 0)
            found = sum(outcome.hits.values())
            tokens = (outcome.prompt_tokens, outcome.computed_tokens)
            self._sums[at] += (1, outcome.blocks, found, *tokens, outcome.ttft)

    def result(self) -> list[TimedSlice]:
        return [
            TimedSlice(start, int(count), int(blocks), int(hits), int(prompt), int(computed), float(ttft / max(count, 1)))
            for start, (count, blocks, hits, prompt, computed, ttft) in zip(self._starts, self._sums, strict=True)
        ]


def sweep(
    trace: Trace,
    policies: Sequence[str],
    sizes: Sequence[Capacity],
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
    intake: Intake | None = None,
) -> list[ReplayResult]:
    """Every policy at every size, in that order.

    Args:
        trace: read once more for its survey, if that is not given, and then at least once by each process.
        policies: names that `make_policy` knows, and those of `BOUNDS`.
        sizes: cache sizes.
        workers: processes; as many as there are cores if None. The results do not depend on it.
        progress: see there.
        counted: the trace's survey.
        intake: what the policies' pools take in; everything, if not given.

    Raises:
        ConfigError: an unknown policy, a size of less than a block, or no size or policy at all. Nothing has been run.
    """
    pairs = [(policy, size) for policy in policies for size in sizes]
    return sweep_pairs(trace, pairs, workers, progress, counted, intake)


def sweep_pairs(
    trace: Trace,
    pairs: Sequence[tuple[str, Capacity]],
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
    intake: Intake | None = None,
) -> list[ReplayResult]:
    """Each policy at its size, in that order; otherwise like `sweep`."""
    check_policies([policy for policy, _ in pairs])
    counted = counted or survey(trace)
    runs = [_Run(policy, size.of(counted.unique), size.fraction(counted.unique), intake=intake) for policy, size in pairs]
    return [result for result in _run_all(trace, counted, runs, workers, progress) if isinstance(result, ReplayResult)]


def sweep_timed(
    trace: Trace,
    machine: Machine,
    policies: Sequence[str],
    sizes: Sequence[Capacity],
    speed: float = 1.0,
    workers: int | None = None,
    progress: Progress | None = None,
    counted: Survey | None = None,
    intake: Intake | None = None,
) -> list[TimedResult]:
    """Every policy at every size of host memory, replayed with time on one machine; otherwise like `sweep`.

    Args:
        trace: as for `sweep`, like all that is not said here.
        machine: what to replay on.
        policies: names of policies; bounds have no time.
        sizes: of host memory.
        speed: how much faster than in the trace requests arrive.
        workers: processes.
        progress: see there.
        counted: the trace's survey.
        intake: as for `sweep`.

    Raises:
        ConfigError: as for `sweep`, or a machine that is none.
    """
    check_policies(policies, bounds=())
    machine.check()
    if not speed > 0:
        raise ConfigError(f"speed: {speed!r} is not greater than 0")
    counted = counted or survey(trace)
    runs = [
        _Run(policy, size.of(counted.unique), size.fraction(counted.unique), machine, speed, intake=intake)
        for policy in policies
        for size in sizes
    ]
    return [result for result in _run_all(trace, counted, runs, workers, progress) if isinstance(result, TimedResult)]


def sweep_machines(
    trace: Trace,
    runs: Sequence[tuple[Machine, str, int]],
    counted: Survey,
    speed: float = 1.0,
    starts: Sequence[float] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[TimedResult]:
    """Replays with time, each on a machine of its own; otherwise like `sweep_timed`.

    Args:
        trace: as there, like all that is not said here.
        runs: machine, policy and blocks of host memory of each; 0 blocks for no cache below the GPU.
        counted: the trace's survey.
        speed: how much faster than in the trace requests arrive.
        starts: where parts of the time begin that results tell apart, in replayed seconds, ascending; none if empty.
        workers: processes.
        progress: see there.

    Raises:
        ConfigError: an unknown policy, or a machine that is none. Nothing has been run.
    """
    check_policies([policy for _, policy, _ in runs], bounds=())
    for machine in dict.fromkeys(machine for machine, _, _ in runs):
        machine.check()
    todo = [
        _Run(policy, blocks, blocks / max(counted.unique, 1), machine, speed, tuple(starts))
        for machine, policy, blocks in runs
    ]
    return [result for result in _run_all(trace, counted, todo, workers, progress) if isinstance(result, TimedResult)]


def _run_all(
    trace: Trace, counted: Survey, runs: Sequence[_Run], workers: int | None, progress: Progress | None
) -> list[ReplayResult | TimedResult]:
    workers = min(workers or len(os.sched_getaffinity(0)), len(runs))
    total = len(runs) * counted.blocks
    tell = progress or (lambda _done, _total: None)
    if workers > 1:
        return _parallel(trace, counted, runs, workers, lambda done: tell(done, total))
    bench = _Bench(trace, counted)
    results: list[ReplayResult | TimedResult] = []
    for run in runs:
        results.append(bench.run(run, lambda done: tell(len(results) * counted.blocks + done, total)))
    return results


def check_policies(names: Sequence[str], bounds: Sequence[str] = BOUNDS) -> None:
    """Raises:
    ConfigError: one of the names is neither a policy's nor one of `bounds`, or is that of a broken plug-in.
    """
    for name in dict.fromkeys(names):
        if name in bounds:
            continue
        if not is_policy(name):
            known = ", ".join(["default", *policy_names(), *bounds])
            raise ConfigError(f"policy {name!r} is unknown; choose one of: {known}")
        load_policy(name)


def _parallel(
    trace: Trace, counted: Survey, runs: Sequence[_Run], workers: int, tell: Callable[[int], None]
) -> list[ReplayResult | TimedResult]:
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
        except BrokenProcessPool as error:
            raise KvloftError(
                "a process that replayed the trace was killed, most likely for lack of memory; run fewer at a time: --jobs 1"
            ) from error
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


def _work(at: int, run: _Run) -> ReplayResult | TimedResult:
    def tell(done: int) -> None:
        _board[at] = done
        if _board[-1]:
            raise Interrupted

    return _bench.run(run, tell)
