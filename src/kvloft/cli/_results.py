"""Results as tables and as JSON."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from kvloft.config import format_size
from kvloft.sim.latency import TimedResult
from kvloft.sim.replay import ReplayResult
from kvloft.sim.sample import ENOUGH, SampledResult
from kvloft.traces.trace import Trace


def print_estimates(console: Console, trace: Trace, results: Sequence[SampledResult]) -> None:
    """Hit ratios with their standard errors, a row a policy, a column a size."""
    _print_table(console, trace, results, lambda result: f"{result.hit_ratio:.1%}\n±{result.error:.1%}")
    first = results[0]
    console.print(f"Estimated from {first.samples} samples of {first.rate:.3g} of the trace each; ± is the standard error.")
    if first.families < ENOUGH:
        console.print(
            f"Each sample has some {first.families:,} request families; below {ENOUGH} the error is often larger than "
            "shown. Take a higher rate."
        )
    if any(result.refused_stores for result in results):
        console.print("Some samples' caches were too small for a request; there the estimate is biased. Take a higher rate.")
    _print_notes(console, trace)


def print_ratios(console: Console, trace: Trace, results: Sequence[ReplayResult]) -> None:
    """Hit ratios, a row a policy, a column a size."""
    _print_table(console, trace, results, lambda result: f"{result.hit_ratio:.1%}")
    refused = sum(result.refused_stores for result in results)
    if refused:
        console.print(f"{refused:,} stores were refused: more than the cache can hold at once.")
    _print_notes(console, trace)


def print_timed(console: Console, trace: Trace, results: Sequence[TimedResult]) -> None:
    """Hits by place, times to first token, prefill saved and bytes moved, a column a run."""
    table = Table(title=f"{trace.name}: replay with time", title_justify="left")
    table.add_column("policy\nhost blocks")
    for result in results:
        table.add_column(f"{result.policy}\n{result.capacity_blocks:,}", justify="right")

    def row(heading: str, cell: Callable[[TimedResult], str]) -> None:
        table.add_row(heading, *map(cell, results))

    for place in dict.fromkeys(place for result in results for place in result.hit_blocks):
        row(f"hits: {place}", lambda run, place=place: _share(run.hit_blocks.get(place, 0), run.total_blocks))  # type: ignore[misc]
    row("hits: all", lambda run: f"{run.hit_ratio:.1%}")
    row("tokens saved", lambda run: _share(run.saved_tokens, run.prompt_tokens))
    row("prefill busy", lambda run: _share(run.prefill_seconds, run.seconds))
    row("TTFT mean", lambda run: f"{run.ttft_mean:.3g} s")
    for at in ("50", "90", "99"):
        row(f"TTFT {at} %", lambda run, at=at: f"{run.ttft_percentiles[at]:.3g} s")  # type: ignore[misc]
    row("host to GPU", lambda run: format_size(run.bytes_loaded))
    row("GPU to host", lambda run: format_size(run.bytes_stored))
    for tier in dict.fromkeys(tier for result in results for tier in result.tiers):
        row(f"{tier}: read", lambda run, tier=tier: format_size(run.tier_bytes_read[tier]))  # type: ignore[misc]
        row(f"{tier}: written", lambda run, tier=tier: format_size(run.tier_bytes_written[tier]))  # type: ignore[misc]
    row("waited for a tier", lambda run: f"{run.deferred_requests:,}")
    row("stores refused", lambda run: f"{run.refused_stores:,}")
    console.print(table)
    _print_notes(console, trace)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


_Result = TypeVar("_Result", ReplayResult, SampledResult)


def _print_table(console: Console, trace: Trace, results: Sequence[_Result], cell: Callable[[_Result], str]) -> None:
    cells: dict[tuple[str, str], str] = {}
    for result in results:
        size = f"{100 * result.capacity_fraction:.3g}%\n{result.capacity_blocks:,}"
        cells[result.policy, size] = cell(result)
    policies: list[str] = list(dict.fromkeys(policy for policy, _ in cells))
    sizes = list(dict.fromkeys(size for _, size in cells))
    # Above the table, not its title, which would be folded to the table's width.
    console.print(f"{trace.name}: hit ratio by cache size", style="italic", markup=False)
    table = Table()
    if len(policies) >= len(sizes) or len(sizes) <= 6:
        table.add_column("policy")
        for size in sizes:
            table.add_column(size, justify="right")
        for policy in policies:
            table.add_row(policy, *(cells[policy, size] for size in sizes))
    else:
        for heading in ("size", "blocks", *policies):
            table.add_column(heading, justify="right")
        for size in sizes:
            table.add_row(*size.split("\n"), *(cells[policy, size].replace("\n", " ") for policy in policies))
    console.print(table)


def _print_notes(console: Console, trace: Trace) -> None:
    if trace.skipped:
        console.print(f"{trace.skipped:,} bad lines or files were left out.")
    for assumption in trace.assumptions:
        console.print(f"Assumed: {assumption}")
