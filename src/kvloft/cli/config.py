"""`kvloft config`: what to give vLLM as `--kv-transfer-config`, or what is wrong with what it was given."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvloft.settings.connector import Way

if TYPE_CHECKING:
    from kvloft.settings.connector import Checked

_BUILD, _CHECK = "What to configure", "What to look at"


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[check CONFIG | check -- COMMAND]",
            help="check looks at a configuration: JSON, a file, - for standard input, or a command line of vLLM's. Without "
            "it, one is printed.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help='Host memory for blocks, such as "64GiB" or "50%".', rich_help_panel=_BUILD)
    ] = None,
    disk: Annotated[
        list[str] | None,
        typer.Option(help='Disk tier, "FOLDER:SIZE"; the size may be a share. May be repeated.', rich_help_panel=_BUILD),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(help="A shared store: redis://, s3://, mooncake://... May be repeated.", rich_help_panel=_BUILD),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Which block leaves host memory; kvloft's default if not given.", rich_help_panel=_BUILD),
    ] = None,
    way: Annotated[
        Way,
        typer.Option(
            help="kvloft: all of it. policy, tiering: vLLM's own offloading with kvloft's policy, or its disk, in it.",
            rich_help_panel=_BUILD,
        ),
    ] = Way.KVLOFT,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: all else, such as cascade.admission=second-use.", rich_help_panel=_BUILD),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="With check: a running vLLM, by its process id.", rich_help_panel=_CHECK)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each setting means, and its default.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema.")] = False,
    shell: Annotated[bool, typer.Option("--shell", help="Print the option with its value, quoted for a shell.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: on one line, or what check or --explain has to say.")
    ] = False,
) -> None:
    """Print what to give vLLM as --kv-transfer-config, or check what it was given.

    Exit code 1: what was checked will not work; all that is wrong is told at once. 2: bad input.
    """
    from json import dumps

    from kvloft.errors import ConfigError
    from kvloft.settings.build import Wanted, build
    from kvloft.settings.build import explain as explained
    from kvloft.settings.connector import json_schema

    asked = list(words or ())
    if asked and asked[0] != "check":
        raise ConfigError(f"{asked[0]!r} is nothing to do here; write `kvloft config check ...`, or options only")
    if schema:
        typer.echo(dumps(json_schema(), indent=None if json else 2))
        return
    if asked or pid is not None:
        given = [("--host", host), ("--disk", disk), ("--store", store), ("--policy", policy), ("--set", setting)]
        if refused := [f"{name}: builds a configuration; leave it out when checking one" for name, value in given if value]:
            raise ConfigError(refused)
        raise typer.Exit(_check(asked[1:], pid, json))
    wanted = Wanted(host, disk or (), store or (), policy, way, setting or ())
    if explain:
        _explain(explained(way, _types(wanted)), json)
        return
    built = build(wanted)
    if shell:
        from shlex import quote

        typer.echo(f"--kv-transfer-config {quote(dumps(built))}")
    else:
        typer.echo(dumps(built, indent=None if json else 2))


def _types(wanted: Any) -> list[str]:
    from kvloft.tiers.stores import type_of

    return list(dict.fromkeys([*(["disk"] if wanted.disks else []), *map(type_of, wanted.stores)]))


def _check(words: Sequence[str], pid: int | None, as_json: bool) -> int:
    from json import dumps

    from rich.console import Console

    from kvloft.errors import ConfigError
    from kvloft.settings.command_line import command_of, find_config, read_config
    from kvloft.settings.connector import check

    if pid is not None and words:
        raise ConfigError("--pid: says where the configuration is; leave the other one out")
    problems: list[str] = []
    if pid is not None:
        found, problems = find_config(command_of(pid))
    elif len(words) > 1:
        found, problems = find_config(words)
    elif words:
        found = read_config(words[0])
    else:
        raise ConfigError("check: what? Give JSON, a file, - for standard input, -- and vLLM's command line, or --pid")
    checked = check(found)
    problems += checked.problems
    if as_json:
        typer.echo(dumps({"way": checked.way, "problems": problems}))
        return int(bool(problems))
    console = Console(highlight=False, soft_wrap=True)
    for problem in problems:
        console.print(f"- {problem}", markup=False)
    if not problems:
        console.print(f"fine: {_summary(checked)}", markup=False)
    return int(bool(problems))


def _summary(checked: "Checked") -> str:
    from kvloft.config import format_size
    from kvloft.policies import DEFAULT
    from kvloft.settings.connector import SPECS, Way
    from kvloft.tiers.settings import TierPlan

    settings = checked.settings
    parts = [SPECS[checked.way][0]] if checked.way else []
    parts.append(f"{format_size(settings['cpu_bytes_to_use'])} of host memory")
    parts.append(f"policy {settings.get('eviction_policy', DEFAULT if checked.way is Way.KVLOFT else 'lru')}")
    tiers = settings.get("tiers") or settings.get("secondary_tiers") or ()
    names = [tier.name if isinstance(tier, TierPlan) else tier["type"] for tier in tiers]
    parts.append(f"tiers {', '.join(names)}" if names else "no tiers")
    return ", ".join(parts)


def _explain(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    from json import dumps

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if as_json:
        typer.echo(dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    for of in dict.fromkeys(row["of"] for row in rows):
        table = Table(title=of, title_justify="left", box=None)
        for heading in ("setting", "what to write", "default", "meaning"):
            table.add_column(heading, no_wrap=heading == "setting")
        for row in rows:
            if row["of"] == of:
                default = "required" if row["required"] else _written(row["default"])
                table.add_row(Text(row["name"]), Text(row["written"]), default, Text(row["meaning"]))
        console.print(table)
        console.print()


def _written(default: object) -> str:
    if default is None:
        return "-"
    return str(default).lower() if isinstance(default, bool) else f"{default}"
