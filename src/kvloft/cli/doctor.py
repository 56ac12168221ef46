"""`kvloft doctor`: what will go wrong on this machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvloft.config import Share, parse_share_or_size
from kvloft.doctor import Disk, Harm, Plan, examine
from kvloft.errors import ConfigError
from kvloft.geometry import KVGeometry
from kvloft.settings.build import parse_disk
from kvloft.settings.command_line import read_config
from kvloft.settings.connector import check
from kvloft.settings.stock import read_stock_disk
from kvloft.tiers.settings import TierPlan, read_tier, volume_bytes
from kvloft.tiers.stores import type_of
from kvloft.transfer.arena import total_memory

_STYLE = {Harm.BROKEN: "bold red", Harm.SLOW: "yellow", Harm.NOTE: "cyan", Harm.FINE: "green"}
_PROBE = 64 << 20


def doctor(
    host: Annotated[str | None, typer.Option(help='Host memory for blocks, such as "64GiB" or "50%".')] = None,
    disk: Annotated[list[str] | None, typer.Option(help='Disk tier, "FOLDER" or "FOLDER:SIZE". May be repeated.')] = None,
    store: Annotated[list[str] | None, typer.Option(help="Address of a shared store. May be repeated.")] = None,
    config: Annotated[
        str | None,
        typer.Option(help="All of these from what vLLM is given: JSON, a file, or - for standard input; see kvloft config."),
    ] = None,
    prefill_rate: Annotated[
        float | None, typer.Option(help="Tokens a second that the engine computes: is the disk faster?")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --prefill-rate: the model's config.json. 128 KiB a token if not given.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="With --model: GPUs of the engine, tensor parallel.")] = 1,
    kv_dtype: Annotated[str, typer.Option(help="With --model: vLLM's --kv-cache-dtype.")] = "auto",
    cuda: Annotated[bool | None, typer.Option(help="Whether vLLM runs on GPUs here. Looked up by default.")] = None,
    probe: Annotated[bool, typer.Option(help="Write and read 64 MiB in each folder, to see how fast it is.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Look at this machine and say what will go wrong, worst first, each with what fixes it.

    Exit code 0: nothing is broken. 1: something is. 2: bad input.
    """
    problems: list[str] = []
    wanted = _size("host", host, total_memory(), problems) if host is not None else None
    disks = _disks(disk or (), problems)
    stores = _stores(store or (), problems)
    if config is not None:
        given = [("--host", host), ("--disk", disk), ("--store", store)]
        problems += [f"{name}: is told by --config; leave it out" for name, value in given if value]
        wanted, disks, stores = _from_config(config, problems)
    if prefill_rate is not None and not prefill_rate > 0:
        problems.append(f"--prefill-rate: {prefill_rate:g} is not greater than 0; give tokens a second, such as 12000")
    if model and prefill_rate is None:
        problems.append("--model: says nothing without --prefill-rate; give it too")
    if problems:
        raise ConfigError(problems)
    per_token = KVGeometry.from_config(model, kv_dtype, tp).bytes_per_token() if model else 128 << 10
    gpus = Path("/dev/nvidiactl").exists() if cuda is None else cuda
    findings = examine(Plan(wanted, disks, stores, gpus, prefill_rate, per_token, _PROBE if probe else 0))
    if as_json:
        typer.echo(json.dumps([{**asdict(found), "harm": found.harm.name.lower()} for found in findings], indent=2))
    else:
        table = Table("", "check", "found", box=None, header_style="dim")
        table.add_column("what to do", overflow="fold")
        for found in findings:
            name = f"[{_STYLE[found.harm]}]{found.harm.name.lower()}[/]"
            table.add_row(name, found.check, Text(found.found), Text(found.fix))
        Console(highlight=False).print(table)
    if any(found.harm is Harm.BROKEN for found in findings):
        raise typer.Exit(1)


def _disks(texts: Sequence[str], problems: list[str]) -> list[Disk]:
    disks = []
    for text in texts:
        try:
            folder, size = parse_disk(text)
        except ConfigError as error:
            problems += error.problems
        else:
            disks.append(Disk(Path(folder), _size("disk", size, volume_bytes(folder), problems) if size else None))
    return disks


def _size(name: str, text: str, whole: int, problems: list[str]) -> int | None:
    try:
        size = parse_share_or_size(text)
    except ValueError as error:
        problems.append(f"--{name}: {error}")
        return None
    return size.of(whole) if isinstance(size, Share) else size


def _stores(urls: Sequence[str], problems: list[str]) -> list[TierPlan]:
    stores = []
    for url in urls:
        try:
            stores.append(read_tier({"type": type_of(url), "url": url}, "--store"))
        except ConfigError as error:
            problems += [problem.replace("--store.url", "--store") for problem in error.problems]
    return stores


def _from_config(text: str, problems: list[str]) -> tuple[int | None, list[Disk], list[TierPlan]]:
    checked = check(read_config(text))
    problems += [f"--config: {problem}" for problem in checked.problems]
    if problems:
        return None, [], []
    settings = checked.settings
    stock = [tier for tier in settings.get("secondary_tiers", ()) if tier["type"] == "DiskTier"]
    tiers = [*settings.get("tiers", ()), *(read_stock_disk(tier, "secondary_tiers").plan for tier in stock)]
    disks = [_planned(tier) for tier in tiers if tier.type == "disk"]
    return settings["cpu_bytes_to_use"], disks, [tier for tier in tiers if "url" in tier.settings]


def _planned(tier: TierPlan) -> Disk:
    path, size = tier.settings["path"], tier.settings["capacity"]
    return Disk(Path(path), size.of(volume_bytes(path)) if isinstance(size, Share) else size)
