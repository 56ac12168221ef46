"""`kvloft inspect`: what lies in the directory of a disk tier."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kvloft.tiers.disk.survey import NamespaceReport, Report


def inspect(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory of a disk tier.")],
    verify: Annotated[bool, typer.Option(help="Read every block and check it.")] = False,
    prune: Annotated[bool, typer.Option(help="Delete the namespaces that nobody uses; see --unused-for.")] = False,
    unused_for: Annotated[
        str, typer.Option(help="What --prune deletes: namespaces not used for this long, such as 7d, 12h, 30m or 0s.")
    ] = "7d",
    json: Annotated[bool, typer.Option(help="Print JSON.")] = False,
) -> None:
    """Say what a disk tier's directory holds: by namespace, with age, size and hits.

    It may be in use meanwhile. --prune never touches a namespace of which a running process owns a part. The exit code is 1
    if --verify found damaged blocks.
    """
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    from kvloft.cli._progress import progress
    from kvloft.tiers.disk.survey import prune as prune_namespaces
    from kvloft.tiers.disk.survey import survey

    seconds = _seconds(unused_for)
    with progress("blocks") as tell:
        report = survey(directory, verify=verify, tell=tell)
    pruned = prune_namespaces(directory, seconds) if prune else []
    if json:
        typer.echo(dumps({**asdict(report), "pruned": [namespace.name for namespace in pruned]}, indent=2))
    else:
        _print(Console(highlight=False), report, {namespace.name for namespace in pruned})
    if any(namespace.damaged for namespace in report.namespaces):
        raise typer.Exit(1)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _seconds(text: str) -> float:
    from kvloft.errors import ConfigError

    number, unit = text[:-1], text[-1:]
    try:
        return float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise ConfigError(f"--unused-for: {text!r} is not a time; give a number with s, m, h, d or w, such as 7d") from None


def _print(console: "Console", report: "Report", pruned: set[str]) -> None:
    from rich.markup import escape

    from kvloft.config import format_size

    console.print(f"[bold]{escape(report.path)}[/]: {format_size(report.charged_bytes)} on disk, ", end="")
    console.print(f"{len(report.namespaces)} namespaces, open in {report.processes} processes")
    for namespace in report.namespaces:
        state = "[red]deleted[/]" if namespace.name in pruned else "[green]in use[/]" if namespace.in_use else "not in use"
        console.print(f"\n[bold]{namespace.name}[/] ({state})")
        for label, value in _lines(namespace):
            console.print(f"  {label:24} {escape(value)}")
        for path, reason in namespace.unfit.items():
            console.print(f"  [yellow]{escape(path)}: {escape(reason)}[/]")


def _lines(namespace: "NamespaceReport") -> list[tuple[str, str]]:
    from time import time

    from kvloft.config import format_size
    from kvloft.keys import describe_facts

    now = time()
    lines = describe_facts(namespace.facts) or [("what it is", "unknown: its description is missing")]
    lines.append(("blocks", f"{namespace.blocks:,} of {format_size(namespace.block_bytes)} in {namespace.slots:,} slots"))
    lines.append(("size", f"{format_size(namespace.charged_bytes)} on disk, in {namespace.segments} segments"))
    if namespace.blocks:
        oldest, newest, used = (now - (at or now) for at in (namespace.oldest, namespace.newest, namespace.last_used))
        median = namespace.median_age or 0.0
        lines.append(("age", f"{_age(newest)} to {_age(oldest)}, half below {_age(median)}; last used {_age(used)} ago"))
        lines.append(("hits", f"{namespace.hits:,}; {namespace.never_hit / namespace.blocks:.0%} of the blocks had none"))
    if namespace.broken_slots:
        lines.append(("broken slots", f"{namespace.broken_slots:,}, where the medium failed"))
    if namespace.verified is not None:
        bad = ", ".join(f"{count:,} {defect}" for defect, count in namespace.damaged.items())
        lines.append(("verified", f"{namespace.verified:,} sound" + (f"; damaged: {bad}" if bad else "")))
    return lines


def _age(seconds: float) -> str:
    for unit, length in reversed(_UNITS.items()):
        if unit != "w" and seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "0 s"
