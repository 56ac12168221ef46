"""What commands on traces give beside tables: results as JSON, a page, a chart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from kvloft.files import check_outputs, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from kvloft.report.charts import Figure, Result
    from kvloft.report.page import Page


STDOUT = Path("-")
"""What stands for standard output where a file is asked for."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What was asked for; None is not."""

    json: Path | None
    """`STDOUT` is standard output; then tables and notes go to the other."""
    html: Path | None
    plot: Path | None

    @property
    def console(self) -> "Console":
        """Where tables and notes go."""
        from rich.console import Console

        return Console(stderr=self.json == STDOUT, highlight=False)

    def check(self, *inputs: Path | None) -> None:
        """Make sure, before the work, that all can be written, and that it is none of the `inputs`.

        Raises:
            OutputError: a file cannot.
            ConfigError: there is no such kind of chart.
            MissingExtra: charts need the "report" extra.
        """
        file = None if self.json == STDOUT else self.json
        check_outputs(file, self.html, self.plot, inputs=[path for path in inputs if path is not None])
        if self.html or self.plot:
            from kvloft.report.charts import check_ending

            if self.plot:
                check_ending(self.plot)

    def write(self, results: object, chart: "Callable[[], Figure]", page: "Callable[[], Page]") -> None:
        """Write what was asked for, each file whole or not at all; see `check` for errors."""
        if self.json:
            write_json(self.json, msgspec.json.format(msgspec.json.encode(results), indent=2))
        if self.plot:
            from kvloft.report.charts import save

            save(chart(), self.plot)
        if self.html:
            page().write(self.html)


def write_json(file: Path, text: bytes) -> None:
    """To a file, whole or not at all, or to `STDOUT`."""
    if file == STDOUT:
        typer.echo(text)
    else:
        with write_whole(file) as stream:
            stream.write(text + b"\n")


def draw_curves(results: "Sequence[Result]") -> "Figure":
    """The chart of what was replayed at several sizes."""
    from kvloft.report.charts import curves

    return curves(results)
