"""Files that commands on traces write: results as JSON, a page, a chart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvloft.files import check_outputs, write_whole

if TYPE_CHECKING:
    from kvloft.report.charts import Figure, Result
    from kvloft.report.page import Page


@dataclass(frozen=True, slots=True)
class Outputs:
    """What was asked for; None is not."""

    json: Path | None
    html: Path | None
    plot: Path | None

    def check(self) -> None:
        """Make sure, before the work, that all can be written.

        Raises:
            OutputError: a file cannot.
            ConfigError: there is no such kind of chart.
            MissingExtra: charts need the "report" extra.
        """
        check_outputs(self.json, self.html, self.plot)
        if self.html or self.plot:
            from kvloft.report.charts import check_ending

            if self.plot:
                check_ending(self.plot)

    def write(self, results: object, chart: "Callable[[], Figure]", page: "Callable[[], Page]") -> None:
        """Write what was asked for, each file whole or not at all; see `check` for errors."""
        if self.json:
            with write_whole(self.json) as stream:
                stream.write(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
        if self.plot:
            from kvloft.report.charts import save

            save(chart(), self.plot)
        if self.html:
            page().write(self.html)


def draw_curves(results: "Sequence[Result]") -> "Figure":
    """The chart of what was replayed at several sizes."""
    from kvloft.report.charts import curves

    return curves(results)
