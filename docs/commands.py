"""A hook of the site's builder: fills the page of commands from the command line itself."""

from typing import Any

from typer.core import TyperArgument
from typer.main import get_command

from kvloft.cli import _app

PAGE = "reference/commands.md"
MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page with a section for each command in place of the mark."""
    return markdown.replace(MARK, describe_commands()) if page.file.src_uri == PAGE else markdown


def describe_commands() -> str:
    """Every command: what it says of itself, and its parameters as a table."""
    group: Any = get_command(_app)
    context = group.make_context("kvloft", [], resilient_parsing=True)
    return "\n".join(_section(name, group.get_command(context, name), context) for name in group.list_commands(context))


def _section(name: str, command: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    lines = [f"## kvloft {name}", "", command.help.strip(), "", "| parameter | default | what |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if isinstance(parameter, TyperArgument):
            names = f"`{parameter.metavar or parameter.name.upper()}`"
        else:
            names = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
        default = parameter.get_default(context)
        shown = "required" if parameter.required else "" if default in (None, False) else f"`{default}`"
        lines.append(f"| {names} | {shown} | {_cell(parameter.help or '')} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
