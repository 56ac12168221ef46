"""What to buy: host memory and disk of several sizes, replayed with time and priced.

Each size runs through the pool, policy and cascade that serve (`kvloft.sim.latency`). First all policies at all sizes of
host memory without a disk; then, at each size of host memory, every disk and admission with the policy that computed least
without one.
Prices come after that: they choose among what was measured, and never change what is.

All is compared with the engine that has nothing below the GPU. A prompt token that is not computed saves GPU time at the
prefill rate; time on links and disks costs no GPU time, but it does count in the time to first token.
"""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import stdev
from typing import NamedTuple

import msgspec

from kvloft.errors import ConfigError
from kvloft.sim.cost import DAYS_A_MONTH, Cost, Prices, cost
from kvloft.sim.latency import Machine, TimedResult
from kvloft.sim.replay import Survey, survey, watched
from kvloft.sim.sweep import Progress, check_policies, sweep_machines
from kvloft.sim.tier import TierModel
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace
from kvloft.transfer.limits import Admission

SLICES = 8
"""Parts of equal time that a plan is looked at in."""
_DAY = 86_400.0


class Load(msgspec.Struct, frozen=True):
    """What a trace asks for."""

    survey: Survey
    prompt_tokens: int
    context: float
    """Tokens that a prompt token looks at, on average: half of its prompt."""
    span: float
    """Seconds from the first arrival to the last."""
    start: float
    """When the first arrives."""


def measure_load(trace: Trace, progress: Progress | None = None) -> Load:
    """Count a trace, in one pass; `progress` hears of the bytes read.

    Raises:
        ConfigError: requests have no times, or all the same.
    """
    tokens = squares = 0
    times: list[float] = []

    def requests() -> Iterator[TraceRequest]:
        nonlocal tokens, squares
        for request in watched(trace, progress or (lambda _done, _total: None)):
            if request.time is None:
                raise ConfigError(f"{trace.name}: requests have no times; give --request-rate, how many come a second")
            times[1:] = [request.time]

            length = request.input_tokens or len(request.keys) * trace.block_tokens
            tokens += length
            squares += length * length
            yield request

    counted = survey(requests())
    if len(times) < 2 or not times[1] > times[0] or not tokens:
        raise ConfigError(
            f"{trace.name}: no time passes between its requests; a plan needs a trace of at least some minutes"
        )
    return Load(counted, tokens, squares / tokens / 2, times[1] - times[0], times[0])


def grid(low: int, high: int, steps: int) -> tuple[int, ...]:
    """Sizes to try, ascending: each twice the one before, up to `high`.

    Args:
        low: the least; 0 is tried too, and then the least above it is `high` halved `steps - 1` times.
        high: the most.
        steps: how many sizes above 0. From a `low` above 0 they grow by a constant factor instead of two.
    """
    if high <= low or steps < 2:
        return tuple(sorted({low, high}))
    if low == 0:
        return (0, *sorted({high >> halvings for halvings in range(steps) if high >> halvings}))
    factor = (high / low) ** (1 / (steps - 1))
    return tuple(sorted({low, high, *(round(low * factor**step) for step in range(1, steps - 1))}))


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried.

    Args:
        machine: the engine, without tiers.
        gpus: that it runs on.
        hosts: sizes of host memory, in bytes.
        disks: sizes of disk, in bytes.
        admissions: to disk, the one to prefer among equals first.
        policies: of host memory, the one to prefer among equals first.
        disk: a disk's latency and bandwidth; its size does not matter.
        speed: how much faster than in the trace requests arrive.
        slices: parts of the time to tell apart.
    """

    machine: Machine
    gpus: int
    hosts: tuple[int, ...]
    disks: tuple[int, ...]
    policies: tuple[str, ...]
    admissions: tuple[Admission, ...] = (Admission.EVERYTHING,)
    disk: TierModel
    speed: float = 1.0
    slices: int = SLICES

    def blocks(self, host_bytes: int) -> int:
        """Blocks that so much host memory holds."""
        return host_bytes // self.machine.block_bytes


class Measured(msgspec.Struct, frozen=True):
    """One size, policy and admission, and what its replay came to."""

    host_bytes: int
    disk_bytes: int
    policy: str
    admission: Admission
    result: TimedResult


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A size and what it is worth. Money is a month's, in the prices' currency."""

    host_bytes: int
    disk_bytes: int
    policy: str
    admission: Admission
    """To disk, if there is one."""
    hit_ratio: float
    """Of all blocks, the GPU's own hits included."""
    hit_ratios: dict[str, float]
    """By where the blocks were."""
    computed_tokens: int
    prefill_seconds_saved: float
    """GPU seconds of prefill in the whole trace, less than without anything below the GPU, on all GPUs together."""
    gpu_hours_saved_a_day: float
    ttft_mean: float
    ttft_percentiles: dict[str, float]
    loaded_a_day: float
    """Bytes from host memory to the GPU."""
    written_a_day: float
    """Bytes to the disk."""
    cost: Cost
    saved: float
    """What the GPU hours saved cost."""
    net: float
    """Saved, less the cost."""
    slice_hit_ratios: list[float]
    """Over the parts of the time in which anything was asked."""
    slice_nets: list[float]
    """A month's net, were all its time like each of these parts."""
    refused_stores: int

    @property
    def nothing(self) -> bool:
        """Nothing below the GPU."""
        return not self.host_bytes


class Confidence(msgspec.Struct, frozen=True):
    """How sure an answer is, from parts of the trace's time. The first of them begins with empty caches."""

    slices: int
    agreeing: int
    """In how many of them alone the answer would be the same: that this size pays, or that nothing does."""
    hit_ratio_low: float
    hit_ratio_high: float
    hit_ratio_error: float
    """Standard error of the mean over the parts."""
    net_low: float
    net_high: float
    net_error: float
    rival: str
    """The next best policy at these sizes; empty if none was tried."""
    ahead: int
    """In how many parts the policy nets more than that."""
    level: int
    """In how many parts it nets as much."""

    @property
    def word(self) -> str:
        """ "sure", "likely" or "unsure"."""
        if self.slices < 3 or self.agreeing < 0.75 * self.slices:
            return "unsure"
        return "sure" if self.agreeing == self.slices else "likely"


class Plan(msgspec.Struct, frozen=True):
    """The answer."""

    best: Priced
    """What to buy; its sizes are 0 if nothing pays."""
    confidence: Confidence
    """Of it; if nothing pays, of that, seen from the best that was tried."""
    baseline: Priced
    """Without anything below the GPU."""
    runner_up: Priced | None
    """The best that was tried beside the baseline, if nothing pays."""
    options: list[Priced]
    """All that was tried."""
    prices: Prices
    gpu_hour: float
    hours: float
    """That the engine without anything below the GPU needs for the trace: what a day's figures are scaled from."""

    @property
    def pays(self) -> bool:
        return not self.best.nothing


def measure(
    trace: Trace, setup: Setup, load: Load, workers: int | None = None, progress: Progress | None = None
) -> list[Measured]:
    """Replay all that is to be tried. The first is without anything below the GPU, whether or not that was among the sizes.

    Raises:
        ConfigError: an unknown policy, or a machine that is none. Nothing has been run.
    """
    check_policies(setup.policies, bounds=())
    setup.machine.check()
    hosts = [size for size in setup.hosts if setup.blocks(size)]
    disks = [size for size in setup.disks if size >= setup.machine.block_bytes]
    first = [_Size(0, 0, setup.policies[0])]
    first += [_Size(host, 0, policy) for host in hosts for policy in setup.policies]
    run_in_all = len(first) + len(hosts) * len(disks) * len(setup.admissions)
    total = run_in_all * load.survey.blocks
    step = load.span / setup.speed / setup.slices
    starts = [load.start / setup.speed + step * at for at in range(setup.slices)]

    def run(sizes: Sequence[_Size], before: int) -> list[Measured]:
        def tell(done: int, _total: int) -> None:
            if progress:
                progress(before * load.survey.blocks + done, total)

        runs = [(_machine(setup, size), size.policy, setup.blocks(size.host)) for size in sizes]
        results = sweep_machines(trace, runs, load.survey, setup.speed, starts, workers, tell)
        return [Measured(*size, result) for size, result in zip(sizes, results, strict=True)]

    found = run(first, 0)
    if not hosts or not disks:
        return found
    second = [
        _Size(host, disk, _best_policy(found, host), admission)
        for host in hosts
        for disk in disks
        for admission in setup.admissions
    ]
    return [*found, *run(second, len(first))]


class _Size(NamedTuple):
    host: int
    disk: int
    policy: str
    admission: Admission = Admission.EVERYTHING


def _machine(setup: Setup, size: _Size) -> Machine:
    if not size.disk:
        return setup.machine
    disk = msgspec.structs.replace(setup.disk, capacity_bytes=size.disk)
    return msgspec.structs.replace(setup.machine, tiers=(disk,), admission=size.admission)


def _best_policy(found: Sequence[Measured], host: int) -> str:
    """The policy that left least to compute; the first of equals."""
    tried = [one for one in found if one.host_bytes == host]
    return min(tried, key=lambda one: one.result.computed_tokens).policy


def price(measured: Sequence[Measured], setup: Setup, prices: Prices, gpu_hour: float) -> Plan:
    """Choose among what was measured: the greatest net, of equals the cheapest, of these the first.

    Args:
        measured: the first without anything below the GPU.
        setup: what was tried.
        prices: of hardware.
        gpu_hour: of one GPU.
    """
    worth = _Worth(measured[0].result, setup, prices, gpu_hour)
    options = [worth.of(one) for one in measured]
    best = min(options, key=lambda one: (-one.net, one.cost.total, one.host_bytes, one.disk_bytes))
    others = [one for one in options if not one.nothing]
    runner_up = max(others, key=lambda one: one.net) if best.nothing and others else None
    hours = measured[0].result.seconds / 3600
    return Plan(
        best,
        _confidence(runner_up or best, options, pays=not best.nothing),
        options[0],
        runner_up,
        options,
        prices,
        gpu_hour,
        hours,
    )


class _Worth:
    """What replays are worth beside the one without anything below the GPU."""

    def __init__(self, baseline: TimedResult, setup: Setup, prices: Prices, gpu_hour: float) -> None:
        self._baseline = baseline
        self._setup = setup
        self._days = baseline.seconds / _DAY
        self._prices = prices
        self._gpu_hour = gpu_hour

    def of(self, one: Measured) -> Priced:
        result = one.result
        written = sum(result.tier_bytes_written.values()) / self._days
        bill = cost(self._prices, one.host_bytes, one.disk_bytes, written)
        saved_seconds = self._gpu_seconds(self._baseline.computed_tokens - result.computed_tokens)
        saved = self._money(saved_seconds / self._days)
        pairs = [pair for pair in zip(result.slices, self._baseline.slices, strict=True) if pair[0].blocks]
        slice_days = self._days / self._setup.slices
        return Priced(
            host_bytes=one.host_bytes,
            disk_bytes=one.disk_bytes,
            policy=one.policy,
            admission=one.admission,
            hit_ratio=result.hit_ratio,
            hit_ratios={place: hits / result.total_blocks for place, hits in result.hit_blocks.items()},
            computed_tokens=result.computed_tokens,
            prefill_seconds_saved=saved_seconds,
            gpu_hours_saved_a_day=saved_seconds / self._days / 3600,
            ttft_mean=result.ttft_mean,
            ttft_percentiles=result.ttft_percentiles,
            loaded_a_day=result.bytes_loaded / self._days,
            written_a_day=written,
            cost=bill,
            saved=saved,
            net=saved - bill.total,
            slice_hit_ratios=[mine.hits / mine.blocks for mine, _ in pairs],
            slice_nets=[
                self._money(self._gpu_seconds(base.computed_tokens - mine.computed_tokens) / slice_days) - bill.total
                for mine, base in pairs
            ],
            refused_stores=result.refused_stores,
        )

    def _gpu_seconds(self, tokens: int) -> float:
        return tokens / self._setup.machine.prefill_tokens_per_second * self._setup.gpus

    def _money(self, gpu_seconds_a_day: float) -> float:
        return gpu_seconds_a_day / 3600 * self._gpu_hour * DAYS_A_MONTH


def _confidence(best: Priced, options: Sequence[Priced], pays: bool) -> Confidence:
    rivals = [
        one
        for one in options
        if (one.host_bytes, one.disk_bytes) == (best.host_bytes, best.disk_bytes) and one.policy != best.policy
    ]
    rival = max(rivals, key=lambda one: one.net, default=None)
    nets = best.slice_nets or [0.0]
    pairs = list(zip(best.slice_nets, rival.slice_nets, strict=True)) if rival else []
    ratios = best.slice_hit_ratios or [0.0]
    return Confidence(
        slices=len(best.slice_nets),
        agreeing=sum((net > 0) is pays for net in best.slice_nets),
        hit_ratio_low=min(ratios),
        hit_ratio_high=max(ratios),
        hit_ratio_error=_error(ratios),
        net_low=min(nets),
        net_high=max(nets),
        net_error=_error(nets),
        rival=rival.policy if rival else "",
        ahead=sum(mine > its for mine, its in pairs),
        level=sum(mine == its for mine, its in pairs),
    )


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
