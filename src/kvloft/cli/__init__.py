"""The `kvloft` command: one file a command.

Every module here whose name does not start with an underscore is a command; the function of the same name in it, annotated
as typer wants it, is what runs, and its docstring is the help. Only the module of the command that is run is imported, so a
command may need an optional dependency without the others noticing. `--help` imports them all: keep heavy imports inside
the function.

A `KvloftError` ends a command with its text on standard error and exit code 2. Settings that it names, which may be called
otherwise inside, are then named as they were typed.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvloft import __version__
from kvloft.cli._outputs import STDOUT
from kvloft.errors import ConfigError, KvloftError

_SETTING = re.compile(r"([A-Za-z][\w -]*?)(?:: | (?='))")
"""What a problem begins with: `gpu: ...`, or `policy 'x' ...`."""
_OPTIONS = {
    "model config": "model",
    "KV dtype": "kv-dtype",
    "prefill_tokens_per_second": "prefill-rate",
    "decode_tokens_per_second": "decode-rate",
    "link_bytes_per_second": "link",
    "block_bytes": "bytes-per-token",
    "sessions_a_second": "rate",
    "cpu_bytes_to_use": "host",
    "eviction_policy": "policy",
}
"""Options that are not called like the settings that they give."""


def _as_typed(problem: str, options: Collection[str]) -> str:
    """A problem that names a setting, naming the option that gives it, if one does."""
    setting = _SETTING.match(problem)
    if setting is None:
        return problem
    option = "--" + _OPTIONS.get(setting[1], setting[1]).replace("_", "-")
    return f"{option}: {problem[setting.end() :]}" if option in options else problem


class _Command(TyperCommand):
    """A command whose errors name its options, and whose `--json FILE` prints where no file is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any("--json" in option.opts and not getattr(option, "is_flag", False) for option in self.params):
            for at in reversed([at for at, arg in enumerate(args) if arg == "--json"]):
                following = args[at + 1 : at + 2]
                if not following or (following[0].startswith("-") and following[0] != str(STDOUT)):
                    args.insert(at + 1, str(STDOUT))
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            options = {option for parameter in self.params for option in parameter.opts}
            raise ConfigError([_as_typed(problem, options) for problem in error.problems]) from error


class _Commands(TyperGroup):
    """The modules of this package, as a group that imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        modules = (module.name for module in pkgutil.iter_modules(__path__))
        return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(cmd_name, cls=_Command)(getattr(importlib.import_module(f"{__name__}.{name}"), name))
        return get_command(app)


_app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvloft {__version__}")
        raise typer.Exit


@_app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """KV-cache offload for LLM serving: try it, replay traces through it, plan its size."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line (`sys.argv` if none is given) and exit: 0 done, 1 the answer is no, 2 bad input."""
    try:
        get_command(_app)(args=args, prog_name="kvloft")
    except KvloftError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), str(error)))
        sys.exit(2)
