"""A hook of the site's builder: fills tables of the reference from the command line and from the settings themselves."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from typer.core import TyperArgument
from typer.main import get_command

from kvloft.cli import _app
from kvloft.fields import Field
from kvloft.settings.spec import SPEC
from kvloft.tiers.settings import COMMON, TYPES
from kvloft.transfer.limits import cascade_fields


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with what its marks stand for."""
    for mark, describe in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, describe())
    return markdown


def describe_commands() -> str:
    """Every command: what it says of itself, and its parameters as a table."""
    group: Any = get_command(_app)
    context = group.make_context("kvloft", [], resilient_parsing=True)
    return "\n".join(_command(name, group.get_command(context, name), context) for name in group.list_commands(context))


def describe_tiers() -> str:
    """Every type of tier with its settings."""
    sections = [f"### {name}\n\n{kind.meaning}\n\n{_table(kind.fields)}" for name, kind in TYPES.items()]
    return "\n\n".join([f"### Of every tier\n\n{_table(COMMON)}", *sections])


def _command(name: str, command: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    lines = [f"## kvloft {name}", "", command.help.strip(), "", "| parameter | default | what |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if isinstance(parameter, TyperArgument):
            names = f"`{_cell(parameter.metavar or parameter.name.upper())}`"
        else:
            names = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
        default = parameter.get_default(context)
        shown = "required" if parameter.required else "" if default in (None, False) else f"`{default}`"
        lines.append(f"| {names} | {shown} | {_cell(parameter.help or '')} |")
    return "\n".join([*lines, ""])


def _table(fields: Iterable[Field]) -> str:
    lines = ["| setting | what is written | default | what |", "|---|---|---|---|"]
    for field in fields:
        lines.append(f"| `{field.name}` | {_cell(field.kind.written)} | {_default(field)} | {_cell(field.meaning)} |")
    return "\n".join(lines)


def _default(field: Field) -> str:
    if field.required:
        return "required"
    simple = isinstance(field.default, str | int | float) and field.default != ""
    return f"`{json.dumps(field.default)}`" if simple else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


MARKS: dict[str, Callable[[], str]] = {
    "<!-- commands -->": describe_commands,
    "<!-- settings -->": lambda: _table(SPEC),
    "<!-- cascade -->": lambda: _table(cascade_fields()),
    "<!-- tiers -->": describe_tiers,
}
"""What stands in pages, and what comes in its place."""
