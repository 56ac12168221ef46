"""`kvloft top`: what running engines do with their caches."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from kvloft.watch import TierView, View


_TENANTS = 5
"""Those with most blocks are shown."""


def top(
    urls: Annotated[list[str], typer.Argument(help='Where vLLM listens, such as "localhost:8000"; several may be given.')],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many views; go on until Ctrl-C if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each view as a line of JSON.")] = False,
) -> None:
    """Watch the caches of running vLLM engines: hits by tier, bytes in and out, evictions, refusals, residency, breakers.

    Exit code 2: an engine does not answer.
    """
    import json

    from rich.console import Console, Group
    from rich.live import Live

    from kvloft.watch import compare, read

    readings = {url: read(url) for url in urls}
    console = Console()
    live = Live(console=console, auto_refresh=False, screen=console.is_terminal and count is None)
    shown = 0
    try:
        with live:
            while count is None or shown < count:
                time.sleep(interval)
                latest = {url: read(url) for url in urls}
                views = {url: compare(readings[url], latest[url]) for url in urls}
                readings = latest
                shown += 1
                if as_json:
                    for url, view in views.items():
                        typer.echo(json.dumps({"url": url, **asdict(view)}))
                else:
                    live.update(Group(*(_panel(url, view) for url, view in views.items())), refresh=True)
    except KeyboardInterrupt:
        pass


def _panel(url: str, view: "View") -> "RenderableType":
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    from kvloft.config import format_size

    table = Table.grid(padding=(0, 2))
    engine = f"engine {_share(view.engine_hit_share)} (ever {_share(view.engine_hit_share_ever)})"
    host = f"kvloft {_share(view.host_hit_share)} (ever {_share(view.host_hit_share_ever)})"
    table.add_row("[dim]hits[/]", f"{engine}   {host}")
    if view.sources:
        shares = "   ".join(f"{source} {share:.1%}" for source, share in view.sources.items())
        table.add_row("[dim]of prompts[/]", shares)
    table.add_row(
        "[dim]blocks/s[/]", f"loaded {view.hits:,.1f}   stored {view.stored:,.1f}   {_rates('evicted', view.evicted)}"
    )
    if any(view.refused.values()):
        table.add_row("[dim]refused/s[/]", f"[yellow]{_rates('', view.refused)}[/]")
    moved = "   ".join(f"{way} {format_size(max(int(rate), 1))}/s" for way, rate in view.moved.items() if rate >= 1)
    table.add_row("[dim]bytes[/]", moved or "none moved")
    table.add_row("[dim]host[/]", f"{_bar(view)} {view.blocks.get('ready', 0):,.0f} of {view.capacity:,.0f} blocks readable")
    lists = "   ".join(f"{name} {size:,.0f}" for name, size in view.lists.items())
    table.add_row("[dim]lists[/]", lists or "none")
    if view.tiers:
        oldest = f", the longest {view.waiting_seconds:.1f} s" if view.waiting else ""
        table.add_row("[dim]waiting[/]", f"{view.waiting:,.0f} requests for blocks from below{oldest}")
    for tier in view.tiers:
        table.add_row(f"[dim]{tier.name}[/]", _tier(tier))
    for name, rates in list(view.tenants.items())[:_TENANTS]:
        moved = f"loaded {rates['loaded']:,.1f}/s   stored {rates['stored']:,.1f}/s"
        table.add_row("[dim]tenant[/]", f"{escape(name)}   {moved}")
    return Panel(table, title=url, title_align="left", subtitle=f"last {view.seconds:.1f} s", subtitle_align="right")


def _tier(tier: "TierView") -> str:
    from kvloft.config import format_size

    size = format_size(max(int(tier.bytes), 1))
    of = f" of {format_size(int(tier.capacity_bytes))}" if tier.capacity_bytes else ""
    state = f"[bold red]left alone: {', '.join(tier.left_alone)}[/]" if tier.left_alone else "[green]in use[/]"
    text = f"{state}   {size}{of}   up {tier.loaded:,.1f}/s   down {tier.stored:,.1f}/s   missed {tier.missed:,.1f}/s"
    text += f"\nread {format_size(int(tier.bytes_read))}/s   written {format_size(int(tier.bytes_written))}/s"
    text += f"   evicted {tier.evicted:,.1f}/s   pending {tier.pending:,.0f}"
    if tier.oldest_seconds:
        text += f", the oldest {tier.oldest_seconds:.1f} s"
    if tier.dropped:
        text += f"   [yellow]dropped {tier.dropped:,.1f}/s[/]"
    if tier.failed:
        text += f"   [red]failed {tier.failed:,.1f}/s[/]"
    if tier.corrupt:
        text += f"   [red]corrupt {tier.corrupt:,.0f}[/]"
    return text


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _rates(what: str, rates: "Mapping[str, float]") -> str:
    parts = ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items() if rate)
    total = f"{what} {sum(rates.values()):,.1f}".strip()
    return f"{total} ({parts})" if parts else total


def _bar(view: "View", width: int = 30) -> str:
    """Residency as a bar: readable, being written, free."""
    if not view.capacity:
        return ""
    ready, writing = (round(width * view.blocks.get(state, 0) / view.capacity) for state in ("ready", "writing"))
    return f"[green]{'█' * ready}[/][yellow]{'█' * writing}[/][dim]{'░' * max(width - ready - writing, 0)}[/]"
