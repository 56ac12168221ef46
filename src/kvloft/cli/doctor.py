"""`kvloft doctor`: what will go wrong on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvloft.config import parse_size
from kvloft.doctor import Harm, Plan, examine
from kvloft.errors import ConfigError

_STYLE = {Harm.BROKEN: "bold red", Harm.SLOW: "yellow", Harm.NOTE: "cyan", Harm.FINE: "green"}


def doctor(
    host: Annotated[str | None, typer.Option(help='Host memory for blocks, such as "64GiB".')] = None,
    disk: Annotated[str | None, typer.Option(help='Disk tier, "FOLDER" or "FOLDER:SIZE".')] = None,
    cuda: Annotated[bool | None, typer.Option(help="Whether vLLM runs on GPUs here. Looked up by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Look at this machine and say what will go wrong, worst first, each with what fixes it.

    Exit code 0: nothing is broken. 1: something is. 2: bad input.
    """
    problems: list[str] = []
    folder, capacity = None, None
    if disk is not None:
        name, _, size = disk.partition(":")
        folder = Path(name)
        capacity = _size("disk", size, problems) if size else None
    wanted = _size("host", host, problems) if host is not None else None
    if problems:
        raise ConfigError(problems)
    gpus = Path("/dev/nvidiactl").exists() if cuda is None else cuda
    findings = examine(Plan(wanted, folder, capacity, gpus))
    if as_json:
        typer.echo(json.dumps([{**asdict(found), "harm": found.harm.name.lower()} for found in findings], indent=2))
    else:
        table = Table("", "check", "found", "what to do", box=None, header_style="dim")
        for found in findings:
            name = found.harm.name.lower()
            table.add_row(f"[{_STYLE[found.harm]}]{name}[/]", found.check, found.found, found.fix)
        Console().print(table)
    if any(found.harm is Harm.BROKEN for found in findings):
        raise typer.Exit(1)


def _size(name: str, text: str, problems: list[str]) -> int | None:
    try:
        return parse_size(text)
    except ValueError as error:
        problems.append(f"--{name}: {error}")
        return None
