"""`kvloft plan`: what to buy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvloft.cli import _trace_options as options
from kvloft.config import parse_size
from kvloft.errors import ConfigError, KvloftError

if TYPE_CHECKING:
    from kvloft.report.charts import Figure
    from kvloft.report.page import Page
    from kvloft.sim.advice import Advice
    from kvloft.sim.planner import Load, Plan
    from kvloft.transfer.limits import Admission

_ENGINE, _SIZES, _MONEY, _TRACE = "Engine", "Sizes", "Money", "Trace"
_Value = TypeVar("_Value")


def plan(
    trace: options.Trace,
    model: Annotated[
        str, typer.Option(help="The model's Hugging Face config.json, or its folder.", rich_help_panel=_ENGINE)
    ],
    gpu: Annotated[str, typer.Option(help="Such as H100, A100, L40S.", rich_help_panel=_ENGINE)] = "H100",
    tp: Annotated[int, typer.Option(help="GPUs of the engine, tensor parallel.", rich_help_panel=_ENGINE)] = 1,
    gpu_kv: Annotated[str, typer.Option(help="KV cache of each GPU.", rich_help_panel=_ENGINE)] = "20GiB",
    kv_dtype: Annotated[str, typer.Option(help="vLLM's --kv-cache-dtype.", rich_help_panel=_ENGINE)] = "auto",
    mfu: Annotated[float, typer.Option(help="Share of the GPU's peak that prefill reaches.", rich_help_panel=_ENGINE)] = 0.5,
    prefill_rate: Annotated[
        float | None,
        typer.Option(help="Tokens a second in prefill, as measured; instead of --mfu.", rich_help_panel=_ENGINE),
    ] = None,
    decode_rate: Annotated[float, typer.Option(help="Tokens a second of each answer.", rich_help_panel=_ENGINE)] = 50.0,
    concurrency: Annotated[int, typer.Option(help="Requests that run at a time.", rich_help_panel=_ENGINE)] = 64,
    link: Annotated[
        str | None,
        typer.Option(
            help="Bytes a second between host memory and a GPU, each way; the GPU's PCIe if not given.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Host memory: a range, or sizes.", rich_help_panel=_SIZES)] = "0..512GiB",
    disk: Annotated[str, typer.Option(help="Disk: a range, or sizes.", rich_help_panel=_SIZES)] = "0..4TiB",
    steps: Annotated[int, typer.Option(help="Sizes above 0 to try in a range.", rich_help_panel=_SIZES)] = 5,
    policy: Annotated[
        str, typer.Option(help="Policies to compare, separated by commas; all for all.", rich_help_panel=_SIZES)
    ] = "default,lru,arc,s3-fifo",
    admission: Annotated[
        str,
        typer.Option(help="What goes to disk, to compare: everything, second-use, write-back.", rich_help_panel=_SIZES),
    ] = "everything,second-use",
    disk_rates: Annotated[
        str, typer.Option(help="Of the disk, in bytes a second: read:written.", rich_help_panel=_SIZES)
    ] = "5GB:3GB",
    disk_latency: Annotated[float, typer.Option(help="Of the disk, in seconds.", rich_help_panel=_SIZES)] = 0.0001,
    disk_path: Annotated[
        str, typer.Option(help="Where it will lie, for the flags.", rich_help_panel=_SIZES)
    ] = "/var/cache/kvloft",
    prices: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file; round figures if not given.", rich_help_panel=_MONEY)
    ] = None,
    speed: Annotated[
        float, typer.Option(help="How much faster than in the trace requests arrive.", rich_help_panel=_TRACE)
    ] = 1.0,
    request_rate: Annotated[
        float | None, typer.Option(help="Requests a second, for a trace without times.", rich_help_panel=_TRACE)
    ] = None,
    form: options.Format = None,
    skip_bad: options.SkipBad = False,
    block_tokens: options.BlockTokens = None,
    seed: options.Seed = 0,
    spread_minutes: options.SpreadMinutes = 240.0,
    shared_prefix: options.SharedPrefix = False,
    jobs: options.Jobs = None,
    json: options.Json = None,
    html: options.Html = None,
    plot: options.Plot = None,
) -> None:
    """Say how much host memory and disk to buy for a trace, with which policy, and what that saves.

    Sizes are replayed with time through the cache that serves, and priced. A range such as 0..512GiB is tried at 0, 512GiB
    and, halving, --steps sizes in all; give sizes themselves as 0,64GiB,100GiB. Exit code 1 says that nothing pays.
    """
    from kvloft.cli._outputs import Outputs
    from kvloft.cli._plan_results import print_plan
    from kvloft.cli._progress import progress
    from kvloft.geometry import KVGeometry
    from kvloft.model_config import ModelConfig
    from kvloft.policies import DEFAULT, policy_names
    from kvloft.sim.advice import Target, advise
    from kvloft.sim.cost import Prices, read_prices
    from kvloft.sim.flops import prefill_flops
    from kvloft.sim.hardware import find_gpu
    from kvloft.sim.latency import Machine
    from kvloft.sim.planner import Setup, measure, measure_load, price
    from kvloft.sim.sweep import check_policies
    from kvloft.sim.tier import TierModel, parse_rate
    from kvloft.traces.spaced import Spaced

    faults = _Faults()
    outputs = Outputs(json, html, plot)
    faults.read(lambda: outputs.check(trace, Path(model), prices))
    names = policy_names() if policy == "all" else [name.strip() for name in policy.split(",")]
    names = [DEFAULT if name == "default" else name for name in names]
    geometry = faults.read(lambda: KVGeometry.from_config(model, kv_dtype, tp))
    config = faults.read(lambda: ModelConfig(model).fields) if geometry else None
    chip = faults.read(lambda: find_gpu(gpu))
    gpu_kv_bytes = faults.read(lambda: _size("gpu-kv", gpu_kv))
    hosts = faults.read(lambda: read_sizes("host", host, steps))
    disks = faults.read(lambda: read_sizes("disk", disk, steps))
    ways = faults.read(lambda: _admissions(admission))
    costs = faults.read(lambda: read_prices(prices)) if prices else Prices()
    faults.read(lambda: check_policies(names, bounds=()))
    link_rate = faults.read(lambda: parse_rate("link", link)) if link else None
    medium = faults.read(lambda: _medium(disk_rates, disk_latency))
    if chip and gpu_kv_bytes and gpu_kv_bytes > chip.memory_bytes:
        faults.add(f"gpu-kv: {gpu_kv} is more than an {chip.name} has; give what vLLM reports as available for KV cache")
    if config and prefill_rate is None:
        faults.read(lambda: prefill_flops(config, 1.0))
    faults.above_zero(mfu=mfu, prefill_rate=prefill_rate, decode_rate=decode_rate, concurrency=concurrency)
    faults.above_zero(speed=speed, request_rate=request_rate, steps=steps)
    if mfu > 1:
        faults.add(f"mfu: {mfu:g} is more than all; give a share such as 0.5")
    opened = faults.read(
        lambda: options.open_given(trace, form, skip_bad, block_tokens, seed, spread_minutes, shared_prefix)
    )
    faults.check()
    assert geometry and chip and gpu_kv_bytes and hosts and disks and ways and costs and medium and opened and config
    if request_rate:
        opened = Spaced(opened, request_rate)

    with progress("bytes read") as tell:
        load = measure_load(opened, tell)
    fp8 = _is_fp8(config) and chip.flops_fp8 is not None
    flops = None if prefill_rate else prefill_flops(config, load.context)
    rate = prefill_rate or mfu * tp * ((chip.flops_fp8 if fp8 else None) or chip.flops) / (flops or 1.0)
    block_bytes = geometry.growing * geometry.slot_bytes(opened.block_tokens)
    setup = Setup(
        machine=Machine(
            block_tokens=opened.block_tokens,
            block_bytes=block_bytes,
            prefill_tokens_per_second=rate,
            decode_tokens_per_second=decode_rate,
            concurrency=concurrency,
            gpu_blocks=gpu_kv_bytes // (geometry.growing * geometry.block_bytes(opened.block_tokens)),
            link_bytes_per_second=(link_rate or chip.link_bytes_per_second) * (1 if geometry.replicated else tp),
        ),
        gpus=tp,
        hosts=hosts,
        disks=disks,
        policies=tuple(dict.fromkeys(names)),
        admissions=ways,
        disk=TierModel("disk", 0, disk_latency, *medium),
        speed=speed,
    )
    with progress("blocks") as tell:
        measured = measure(opened, setup, load, jobs, tell)
    gpu_hour = chip.hour if costs.gpu_hour is None else costs.gpu_hour
    found = price(measured, setup, costs, gpu_hour)
    target = Target(
        model=model,
        gpu=chip,
        tp=tp,
        kv_dtype=kv_dtype,
        gpu_kv_bytes=gpu_kv_bytes,
        flops=flops,
        mfu=None if prefill_rate else mfu,
        fp8=fp8,
        windowed=geometry.growing < len(geometry.groups),
        disk_path=disk_path,
        notes=tuple(opened.assumptions),
    )
    advice = advise(found, setup, load, target)
    print_plan(outputs.console, opened, found, advice)
    results = {"plan": found, "advice": advice, "setup": setup, "load": load, "target": target}
    outputs.write(results, lambda: _chart(found), lambda: _page(opened.name, found, advice, load))
    if not found.pays:
        raise typer.Exit(1)


def _chart(found: "Plan") -> "Figure":
    from kvloft.report.plan import plan_chart

    return plan_chart(found)


def _page(name: str, found: "Plan", advice: "Advice", load: "Load") -> "Page":
    from kvloft.report.plan import plan_page

    return plan_page(name, found, advice, load)


class _Faults:
    """All that is wrong with the input, to be said at once."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def add(self, problem: str) -> None:
        self._problems.append(problem)

    def read(self, reader: Callable[[], _Value]) -> _Value | None:
        """What `reader` gives; None, and a problem more, if it fails."""
        try:
            return reader()
        except ConfigError as error:
            self._problems += error.problems
        except KvloftError as error:
            self._problems.append(str(error))
        return None

    def above_zero(self, **numbers: float | None) -> None:
        for name, value in numbers.items():
            if value is not None and not value > 0:
                self.add(f"{name.replace('_', '-')}: {value:g} is not greater than 0; give a number that is")

    def check(self) -> None:
        """Raises:
        ConfigError: there are any.
        """
        if self._problems:
            raise ConfigError(list(dict.fromkeys(self._problems)))


def read_sizes(name: str, text: str, steps: int) -> tuple[int, ...]:
    """Sizes in bytes, ascending, from a range such as "0..512GiB" or a list such as "0,64GiB".

    Raises:
        ConfigError: it is neither; names the setting.
    """
    from kvloft.sim.planner import grid

    low, dots, high = text.partition("..")
    if not dots:
        return tuple(sorted({_size(name, part) for part in text.split(",")}))
    least, most = _size(name, low), _size(name, high)
    if least > most:
        raise ConfigError(f"{name}: {text!r} ends before it begins; give the smaller size first")
    return grid(least, most, max(steps, 1))


def _size(name: str, text: str) -> int:
    """A size in bytes; 0 may go without a unit or with any."""
    if text.strip().rstrip("bBkKmMgGtTiI").strip() == "0":
        return 0
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _admissions(text: str) -> "tuple[Admission, ...]":
    from kvloft.transfer.limits import Admission

    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name not in [*Admission]]
    if wrong:
        raise ConfigError([f"admission: {name!r} is unknown; choose from: {', '.join(Admission)}" for name in wrong])
    return tuple(dict.fromkeys(map(Admission, names)))


def _medium(rates: str, latency: float) -> tuple[float, float]:
    from kvloft.sim.tier import parse_rate

    read, _, written = rates.partition(":")
    problems: list[str] = [] if latency >= 0 else [f"disk-latency: {latency:g} is negative; give seconds, such as 0.0001"]
    found: list[float] = []
    for part in (read, written or read):
        try:
            found.append(parse_rate("disk-rates", part))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found[0], found[1]


def _is_fp8(config: object) -> bool:
    """Whether weights are 8-bit floats, so that products are too."""
    quantization = config.get("quantization_config") if isinstance(config, Mapping) else None
    return isinstance(quantization, Mapping) and quantization.get("quant_method") == "fp8"
