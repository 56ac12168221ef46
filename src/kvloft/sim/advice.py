"""A plan in words: what to buy and why, what was assumed, what to look out for, and what to start vLLM with."""

import json
import shlex
from typing import Any

import msgspec

from kvloft.config import format_size
from kvloft.sim.hardware import Gpu
from kvloft.sim.planner import Load, Plan, Priced, Setup
from kvloft.transfer.limits import Admission

_ADMITTED = {
    Admission.EVERYTHING: "for every block",
    Admission.SECOND_USE: "for blocks used twice",
    Admission.WRITE_BACK: "for blocks that leave host memory",
}
PLACES = {"gpu": "GPU", "host": "host memory", "disk": "disk"}
"""Where blocks hit, in words."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for.

    Args:
        model: as it is named to vLLM.
        gpu: its kind.
        tp: how many of them, tensor parallel.
        kv_dtype: vLLM's `--kv-cache-dtype`.
        gpu_kv_bytes: KV cache of each GPU.
        flops: operations for a token of a prompt; None if the prefill rate was given.
        mfu: share of the GPU's peak that prefill reaches; None likewise.
        fp8: the peak is that of 8-bit products.
        windowed: layers with a sliding window are beside others.
        disk_path: where the disk tier lies.
        notes: what the trace's reader assumed.
    """

    model: str
    gpu: Gpu
    tp: int
    kv_dtype: str
    gpu_kv_bytes: int
    flops: float | None
    mfu: float | None
    fp8: bool = False
    windowed: bool = False
    disk_path: str = "/var/cache/kvloft"
    notes: tuple[str, ...] = ()


class Advice(msgspec.Struct, frozen=True):
    """A plan in words."""

    verdict: list[str]
    confidence: list[str]
    loading: str
    """Whether loading beats computing anew."""
    warnings: list[str]
    assumptions: list[str]
    command: str
    """What to start vLLM with."""


def advise(plan: Plan, setup: Setup, load: Load, target: Target) -> Advice:
    """Put it into words."""
    return Advice(
        verdict=_verdict(plan),
        confidence=_confidence(plan),
        loading=_loading(setup),
        warnings=_warnings(plan, setup, load),
        assumptions=_assumptions(plan, setup, load, target),
        command=command(plan.best, setup, target),
    )


def command(best: Priced, setup: Setup, target: Target) -> str:
    """A `vllm serve` command line for a shell. With nothing below the GPU it has no transfer configuration."""
    words = [["vllm", "serve", target.model]]
    if target.tp > 1:
        words.append(["--tensor-parallel-size", str(target.tp)])
    if target.kv_dtype != "auto":
        words.append(["--kv-cache-dtype", target.kv_dtype])
    words += [["--kv-cache-memory-bytes", str(target.gpu_kv_bytes)], ["--enable-prefix-caching"]]
    if not best.nothing:
        words.append(["--kv-transfer-config", json.dumps(transfer_config(best, setup, target), indent=2)])
    return " \\\n  ".join(shlex.join(part) for part in words)


def transfer_config(best: Priced, setup: Setup, target: Target) -> dict[str, Any]:
    """What goes into `--kv-transfer-config`."""
    extra: dict[str, Any] = {
        "spec_name": "KvloftSpec",
        "spec_module_path": "kvloft.vllm",
        "cpu_bytes_to_use": _exact(best.host_bytes),
        "eviction_policy": best.policy,
    }
    if setup.machine.block_tokens > 16 and not setup.machine.block_tokens % 16:
        extra["block_size"] = setup.machine.block_tokens
    if best.disk_bytes:
        extra["tiers"] = [{"type": "disk", "path": target.disk_path, "capacity": _exact(best.disk_bytes)}]
        if best.admission is not Admission.EVERYTHING:
            extra["cascade"] = {"admission": best.admission.value}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def size_text(option: Priced) -> str:
    """Its sizes: "64 GiB of host memory and 1 TiB of disk"."""
    if option.nothing:
        return "nothing below the GPU"
    disk = (
        f" and {format_size(option.disk_bytes)} of disk ({_ADMITTED[option.admission]})"
        if option.disk_bytes
        else ", no disk"
    )
    return f"{format_size(option.host_bytes)} of host memory{disk}"


def seconds_text(value: float) -> str:
    """A duration as people read it."""
    if abs(value) >= 1 or not value:
        return f"{value:,.0f} s" if abs(value) >= 100 or not value else f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} us"


def _exact(nbytes: int) -> int | str:
    """A size as people write it, if that is the whole truth."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if not nbytes % unit:
            return f"{nbytes // unit}{name}"
    return nbytes


def _verdict(plan: Plan) -> list[str]:
    best, base, money = plan.best, plan.baseline, plan.prices.currency
    if best.nothing:
        sentences = ["Caching below the GPU does not pay for this trace at these prices."]
        other = plan.runner_up
        if other is None:
            return [*sentences, "No size was tried that holds as much as one block."]
        sentences.append(
            f"The best that was tried, {size_text(other)} with {other.policy}, saves "
            f"{other.gpu_hours_saved_a_day:.3g} GPU "
            f"hours a day, worth {other.saved:,.2f} {money} a month, and costs {other.cost.total:,.2f}: it loses "
            f"{-other.net:,.2f} {money} a month."
        )
        if other.ttft_percentiles["50"] < base.ttft_percentiles["50"]:
            sentences.append(
                f"It would bring the median time to first token from {seconds_text(base.ttft_percentiles['50'])} to "
                f"{seconds_text(other.ttft_percentiles['50'])}, which the sum does not count."
            )
        return sentences
    sentences = [
        f"Buy {size_text(best)}; use the policy {best.policy}.",
        f"Expect {best.hit_ratio:.1%} of the blocks to hit ({_places(best)}); without it {base.hit_ratio:.1%} do.",
        f"That saves {best.prefill_seconds_saved:,.0f} GPU seconds of prefill in this trace, or "
        f"{best.gpu_hours_saved_a_day:.3g} GPU hours a day.",
        f"Time to first token goes from {seconds_text(base.ttft_percentiles['50'])} to "
        f"{seconds_text(best.ttft_percentiles['50'])} in the "
        f"median, and from {seconds_text(base.ttft_percentiles['99'])} to "
        f"{seconds_text(best.ttft_percentiles['99'])} at the 99th "
        "percentile.",
        f"It costs {best.cost.total:,.2f} {money} a month and saves {best.saved:,.2f}: {best.net:,.2f} {money} are left.",
    ]
    if best.disk_bytes:
        sentences.append(_endurance(best, plan.prices.disk_writes_a_day))
    elif any(option.disk_bytes for option in plan.options):
        sentences.append("A disk does not pay beside it.")
    return sentences


def _endurance(best: Priced, rated: float) -> str:
    share = best.cost.wear
    text = (
        f"The disk takes {format_size(round(best.written_a_day))} of writes a day, "
        f"{best.cost.disk_writes_a_day:.3g} times "
        f"its size, where {rated:g} are allowed: "
    )
    if share <= 1:
        return text + f"{share:.0%} of its endurance."
    return text + f"it wears out {share:.1f} times too early, and the cost counts that. A larger disk wears less."


def _confidence(plan: Plan) -> list[str]:
    sure, money = plan.confidence, plan.prices.currency
    if plan.best.nothing and plan.runner_up is None:
        return ["Nothing was compared, so how sure this is cannot be said."]
    subject = "it pays" if plan.pays else "nothing pays either"
    sentences = [
        f"{sure.word.capitalize()}: in {sure.agreeing} of {sure.slices} parts of the trace's time, "
        f"taken alone, {subject}. "
        "The first part begins with empty caches.",
        f"Hit ratio by part: {sure.hit_ratio_low:.1%} to {sure.hit_ratio_high:.1%}, standard error of the mean "
        f"{sure.hit_ratio_error:.1%}. Net by part: {sure.net_low:,.2f} to {sure.net_high:,.2f} {money} "
        "a month, standard error "
        f"{sure.net_error:,.2f}.",
    ]
    if plan.pays and sure.rival:
        level = f", and level with it in {sure.level}" if sure.level else ""
        sentences.append(f"{plan.best.policy} is ahead of {sure.rival}, the next best, in {sure.ahead} of them{level}.")
    return sentences


def _loading(setup: Setup) -> str:
    machine = setup.machine
    compute = machine.block_tokens / machine.prefill_tokens_per_second
    host = machine.block_bytes / machine.link_bytes_per_second
    below = _disk_seconds(setup)
    return (
        f"A block of {machine.block_tokens} tokens, {format_size(machine.block_bytes)}, takes "
        f"{seconds_text(compute)} to compute, "
        f"{seconds_text(host)} to load from host memory ({_compared(compute / host)}) and {seconds_text(below)} from disk "
        f"({_compared(compute / below)})."
    )


def _disk_seconds(setup: Setup) -> float:
    """To load one block from disk to the GPU."""
    machine, disk = setup.machine, setup.disk
    rate = 1 / disk.read_bytes_per_second + 1 / machine.link_bytes_per_second
    return disk.latency + machine.block_bytes * rate


def _compared(ratio: float) -> str:
    return f"{ratio:.2g} times as quick" if ratio >= 1 else f"{1 / ratio:.2g} times as slow: computing anew is quicker"


def _warnings(plan: Plan, setup: Setup, load: Load) -> list[str]:
    best, base, warnings = plan.best, plan.baseline, []
    machine = setup.machine
    longest = load.survey.longest
    busy = base.computed_tokens / machine.prefill_tokens_per_second / (load.span / setup.speed)
    alone = load.prompt_tokens / load.survey.requests / machine.prefill_tokens_per_second
    if busy > 0.9:
        warnings.append(
            f"One engine cannot compute this trace in time: prefill alone would take {busy:.0%} of it. "
            "Times to first token are "
            "those of a queue; give more GPUs with --tp, or a share of the requests' rate with --speed."
        )
    elif base.ttft_percentiles["50"] > 5 * alone + 1:
        warnings.append(
            "Requests wait: the median time to first token without caching is "
            f"{seconds_text(base.ttft_percentiles['50'])}, while "
            f"computing a prompt takes {seconds_text(alone)} on average. More --gpu-kv, --concurrency or "
            "GPUs would shorten that."
        )
    if any(setup.disks) and _disk_seconds(setup) > machine.block_tokens / machine.prefill_tokens_per_second:
        warnings.append(
            "The disk is slower than computing anew, and kvloft leaves such a disk alone. Several drives together may be "
            "faster: give their rates with --disk-rates."
        )
    if machine.gpu_blocks < longest:
        warnings.append(
            f"The longest prompt has {longest:,} blocks, the GPU's KV cache only "
            f"{machine.gpu_blocks:,}: vLLM would refuse it. It is "
            "replayed as if it ran alone."
        )
    if best.refused_stores:
        warnings.append(
            f"{best.refused_stores:,} stores were refused: prompts larger than the host memory that may "
            "be evicted at that time."
        )
    if best.host_bytes and best.host_bytes == max(setup.hosts) and len(setup.hosts) > 1:
        warnings.append("The largest host memory that was tried is the best: even more may pay. Widen --host.")
    if best.disk_bytes and best.disk_bytes == max(setup.disks) and len(setup.disks) > 1:
        warnings.append("The largest disk that was tried is the best: even more may pay. Widen --disk.")
    return warnings


def _assumptions(plan: Plan, setup: Setup, load: Load, target: Target) -> list[str]:
    machine, prices, money = setup.machine, plan.prices, plan.prices.currency
    rate = machine.prefill_tokens_per_second
    if target.flops is None or target.mfu is None:
        prefill = f"Prefill computes {rate:,.0f} tokens a second, as given."
    else:
        peak = (target.gpu.flops_fp8 if target.fp8 else None) or target.gpu.flops
        prefill = (
            f"Prefill computes {rate:,.0f} tokens a second: {target.tp} x {target.gpu.name} at "
            f"{target.mfu:.0%} (--mfu) of "
            f"{peak / 1e12:,.0f} TFLOPS, {target.flops / 1e9:,.1f} GFLOP a token at the "
            f"{load.context:,.0f} tokens that one looks "
            "at on average. Give --prefill-rate as measured, if you can."
        )
    said = [
        prefill,
        f"A day has as many of this trace as one engine without caching serves in it, {plan.hours:.3g} hours for each"
        + (f" (arriving at {setup.speed:g} times its speed)" if setup.speed != 1 else "")
        + "; all hours of a month are like it. Caches are empty when it begins.",
        "A GPU hour saved is worth what one costs: it is put to use, or fewer GPUs do.",
        f"{machine.block_bytes / machine.block_tokens:,.0f} bytes of KV a token in host memory; blocks of "
        f"{machine.block_tokens} tokens, as the trace has them.",
        f"The GPU keeps {machine.gpu_blocks:,} blocks and serves {machine.concurrency} requests at a "
        "time, each answer at "
        f"{machine.decode_tokens_per_second:g} tokens a second.",
        f"Host memory to GPU {machine.link_bytes_per_second / 1e9:.3g} GB/s each way; disk "
        f"{setup.disk.read_bytes_per_second / 1e9:.3g} GB/s read, "
        f"{setup.disk.write_bytes_per_second / 1e9:.3g} GB/s written, "
        f"{setup.disk.latency * 1e6:.3g} microseconds.",
        f"Prices, in {money}: {plan.gpu_hour:g} a GPU hour, {prices.host_gib_month:g} a GiB of host memory a month, "
        f"{prices.disk_tib_month:g} a TiB of disk a month, which may be written over "
        f"{prices.disk_writes_a_day:g} times a day. "
        "Those not given with --prices are round figures without a source.",
    ]
    if len(setup.policies) > 1 and any(setup.disks):
        said.append("The policy beside a disk is the one that computed least at that size of host memory without one.")
    if any(setup.disks):
        said.append(f"Blocks go to disk in these ways: {', '.join(setup.admissions)}.")
    if target.windowed:
        said.append(
            "Layers with a sliding window keep only the window of a prefix, which does not grow with it and is not counted."
        )
    return [*said, *target.notes]


def _places(option: Priced) -> str:
    return ", ".join(f"{PLACES.get(place, place)} {ratio:.1%}" for place, ratio in option.hit_ratios.items())
