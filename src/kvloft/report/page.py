"""One self-contained HTML page: charts that answer to the mouse, tables, and what they mean in words. Needs no network."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvloft import __version__
from kvloft.errors import MissingExtra
from kvloft.files import write_whole

_STYLE = """
:root { --ink: #1f2933; --dim: #616e7c; --line: #e4e7eb; --accent: #2a9d8f; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #f5f7f9; font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 0 0 6px; }
.lead { color: var(--dim); margin: 0 0 28px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 24px 28px; margin: 0 0 22px; }
.verdict { border-left: 5px solid var(--accent); }
.verdict p { font-size: 18px; margin: 6px 0; }
.charts { display: flex; flex-wrap: wrap; gap: 12px; overflow-x: auto; }
.note { color: var(--dim); font-size: 14px; margin: 4px 0 14px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; width: 100%; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { color: var(--dim); font-weight: 600; }
pre { background: #f5f7f9; border-radius: 6px; padding: 12px; overflow-x: auto; font-size: 13px; }
footer { color: var(--dim); font-size: 13px; }
"""

_DRAW = """
const specs = JSON.parse(document.getElementById("specs").textContent);
const options = { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };
await Promise.all(specs.map((spec, at) => vegaEmbed("#chart" + at, spec, options)));
document.documentElement.dataset.drawn = String(specs.length);
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Args:
        title: its heading.
        note: what the reader should know about it.
        charts: Altair charts, side by side where there is room.
        table: rows of cells, the first being the heads.
        code: text to copy.
    """

    title: str
    note: str = ""
    charts: Sequence[Any] = ()
    table: Sequence[Sequence[str]] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A report. `verdict` are the sentences that matter, told first."""

    title: str
    lead: str
    verdict: Sequence[str]
    sections: Sequence[Section] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            MissingExtra: the charts need the "report" extra.
            OutputError: the file cannot be written.
        """
        with write_whole(path) as stream:
            stream.write(self.render().encode())

    def render(self) -> str:
        """The page's HTML."""
        specs: list[Any] = []
        body = "\n".join(_section(section, specs) for section in self.sections)
        verdict = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.verdict)
        data = json.dumps(specs).replace("</", "<\\/")
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style></head>\n'
            f'<body><main><h1>{html.escape(self.title)}</h1><p class="lead">{html.escape(self.lead)}</p>\n'
            f'<section class="verdict">{verdict}</section>\n{body}\n<footer>kvloft {__version__}</footer></main>\n'
            f'<script type="application/json" id="specs">{data}</script>\n'
            f'<script type="module">{_script()}</script>\n<script type="module">{_DRAW}</script></body></html>\n'
        )


def _section(section: Section, specs: list[Any]) -> str:
    parts = [f"<section><h2>{html.escape(section.title)}</h2>"]
    if section.note:
        parts.append(f'<p class="note">{html.escape(section.note)}</p>')
    if section.charts:
        parts.append('<div class="charts">')
        for chart in section.charts:
            parts.append(f'<div class="chart" id="chart{len(specs)}"></div>')
            specs.append(chart.to_dict())
        parts.append("</div>")
    if section.table:
        heads, *rows = section.table
        parts.append("<table><tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr>")
        parts += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</table>")
    if section.code:
        parts.append(f"<pre>{html.escape(section.code)}</pre>")
    return "".join([*parts, "</section>"])


def _script() -> str:
    """Vega and what belongs to it; leaves `window.vegaEmbed`."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtra("report", "a page with charts") from error
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub wants the optional snippet
    return bundle.replace("</script", "<\\/script")
