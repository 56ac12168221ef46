"""Results as tables and as JSON."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kvloft.sim.replay import ReplayResult
from kvloft.traces.files import write_whole
from kvloft.traces.trace import Trace


def write_json(path: Path, results: object) -> None:
    """The results as JSON, whole or not at all."""
    with write_whole(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def print_ratios(trace: Trace, results: Sequence[ReplayResult]) -> None:
    """Hit ratios, a row a policy, a column a size."""
    console = Console()
    sizes = list(dict.fromkeys((result.capacity_blocks, result.capacity_fraction) for result in results))
    table = Table(title=f"{trace.name}: hit ratio by cache size", title_justify="left")
    table.add_column("policy")
    for blocks, fraction in sizes:
        table.add_column(f"{100 * fraction:.3g}%\n{blocks:,}", justify="right")
    by_policy: dict[str, list[ReplayResult]] = {}
    for result in results:
        by_policy.setdefault(result.policy, []).append(result)
    for policy, row in by_policy.items():
        table.add_row(policy, *(f"{result.hit_ratio:.1%}" for result in row))
    console.print(table)
    refused = sum(result.refused_stores for result in results)
    if refused:
        console.print(f"{refused:,} stores were refused: more than the cache can hold at once.")
    if trace.skipped:
        console.print(f"{trace.skipped:,} bad lines were left out.")
    for assumption in trace.assumptions:
        console.print(f"Assumed: {assumption}")
