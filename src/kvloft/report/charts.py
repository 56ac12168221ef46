"""Charts, as Altair objects: they go into the page, and into PNG, SVG or PDF files for papers."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kvloft.errors import ConfigError, MissingExtra
from kvloft.files import write_whole
from kvloft.report.study import Study
from kvloft.sim.latency import TimedResult
from kvloft.sim.replay import ReplayResult
from kvloft.sim.sample import SampledResult
from kvloft.sim.sweep import BOUNDS

try:
    import altair as alt
    import vl_convert  # noqa: F401  # Altair needs it to draw without a browser, and so does the page.
except ImportError as error:
    raise MissingExtra("report", "drawing charts") from error

WIDTH, HEIGHT = 620, 320
Figure: TypeAlias = Any
"""An Altair chart. Altair's own methods say no more of what they return."""
Result: TypeAlias = ReplayResult | SampledResult | TimedResult
"""What one policy did at one size, or is estimated to do."""

INK, HIT, REGRET, FIRST, PLAIN, DIM = "#1f2933", "#2a9d8f", "#e76f51", "#c9d1d9", "#457b9d", "#8d99a6"
_OUTCOMES = ("hit", "missed though once stored", "never asked for before")


def curves(results: Sequence[Result], block_bytes: int | None = None) -> Figure:
    """Hit ratio against size, a line a policy, dashed for what knows the future. Click the legend to single one out.

    Args:
        results: of one trace.
        block_bytes: bytes of a block, to give sizes in GiB; in blocks if None.
    """
    unit, scale = ("GiB of host memory", block_bytes / 2**30) if block_bytes else ("blocks", 1.0)
    rows = [
        {
            "policy": result.policy,
            "size": result.capacity_blocks * scale,
            "share": result.capacity_fraction,
            "hit ratio": result.hit_ratio,
            "kind": "bound" if result.policy in BOUNDS else "policy",
        }
        for result in results
    ]
    chosen = alt.selection_point(fields=["policy"], bind="legend", name="chosen")
    base = chart_of(rows).encode(
        x=alt.X("size:Q", scale=alt.Scale(type="log"), title=f"size, {unit}"),
        y=alt.Y("hit ratio:Q", axis=alt.Axis(format="%"), title="blocks that hit"),
        color=alt.Color("policy:N", sort=list(dict.fromkeys(result.policy for result in results))),
        opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.12)),
        tooltip=[
            "policy:N",
            alt.Tooltip("size:Q", format=",.4~g", title=unit),
            alt.Tooltip("share:Q", format=".2%", title="of the unique blocks"),
            alt.Tooltip("hit ratio:Q", format=".2%"),
        ],
    )
    lines = base.mark_line(strokeWidth=2).encode(
        strokeDash=alt.StrokeDash("kind:N", scale=alt.Scale(domain=["policy", "bound"], range=[[1, 0], [6, 4]]), legend=None)
    )
    return sized(alt.layer(lines, base.mark_point(filled=True, size=40)).add_params(chosen), WIDTH + 60)


def over_time(study: Study) -> Figure:
    """What became of the block accesses, slice by slice."""
    unit = "hours since the start" if study.timed else "requests"
    scale = 1 / 3600 if study.timed else 1.0
    rows = [
        {"at": part.at * scale, "outcome": outcome, "blocks": blocks, "order": order}
        for part in study.slices
        for order, (outcome, blocks) in enumerate(zip(_OUTCOMES, (part.hit, part.regretted, part.first), strict=True))
    ]
    chart = (
        chart_of(rows)
        .mark_area(interpolate="step-after")
        .encode(
            x=alt.X("at:Q", title=unit),
            y=alt.Y("blocks:Q", stack="normalize", axis=alt.Axis(format="%"), title="block accesses"),
            color=colours("outcome", dict(zip(_OUTCOMES, (HIT, REGRET, FIRST), strict=True))),
            order=alt.Order("order:Q"),
            tooltip=["outcome:N", alt.Tooltip("blocks:Q", format=","), alt.Tooltip("at:Q", format=".2f", title=unit)],
        )
    )
    return sized(chart)


def reuse_ages(study: Study) -> Figure:
    """How long blocks wait for their next use, and whether the cache still had them then."""
    rows = [
        {"from": low, "to": high, "outcome": outcome, "blocks": count}
        for outcome, counts in (("hit", study.ages_hit), ("missed", study.ages_missed))
        for low, high, count in zip(study.age_edges, study.age_edges[1:], counts, strict=False)
    ]
    return _ages(rows, study, "time between two uses", {"hit": HIT, "missed": REGRET})


def regrets(study: Study) -> Figure:
    """How soon after its eviction a block was missed."""
    edges = zip(study.age_edges, study.age_edges[1:], study.regret_ages, strict=False)
    rows = [{"from": low, "to": high, "outcome": "missed", "blocks": count} for low, high, count in edges]
    return _ages(rows, study, "time since eviction", {"missed": REGRET})


def regret_depths(study: Study) -> Figure:
    """Where in their prompts the blocks stood that were evicted and missed."""
    rows = [{"depth": depth, "blocks": count} for depth, count in study.regret_depths.items()]
    return _bars(rows, "depth", "blocks before it in its prompt", REGRET)


def lengths(study: Study) -> Figure:
    """How long prompts are."""
    rows = [{"length": length} for length in study.lengths if length]
    chart = (
        chart_of(rows)
        .transform_calculate(power="floor(log(datum.length) / log(2))")
        .transform_aggregate(requests="count()", groupby=["power"])
        .transform_calculate(blocks="pow(2, datum.power) + ' to ' + (pow(2, datum.power + 1) - 1)")
        .mark_bar(color=PLAIN)
        .encode(
            x=alt.X("blocks:N", sort=alt.SortField("power"), title="blocks of a prompt", axis=alt.Axis(labelAngle=-30)),
            y=alt.Y("requests:Q"),
            tooltip=["blocks:N", alt.Tooltip("requests:Q", format=",")],
        )
    )
    return sized(chart, WIDTH // 2 - 40)


def turns(study: Study) -> Figure:
    """How many requests sessions have."""
    order = [str(turns) for turns in study.turns][:40]
    rows = [{"requests": turns, "sessions": study.turns[int(turns)]} for turns in order]
    chart = chart_of(rows).mark_bar(color=PLAIN)
    return sized(
        chart.encode(
            x=alt.X("requests:N", sort=order, title="requests of a session"), y=alt.Y("sessions:Q"), tooltip=["sessions:Q"]
        ),
        WIDTH // 2 - 40,
    )


def check_ending(path: Path) -> None:
    """Make sure that `save` will know what to write, before the work that leads there.

    Raises:
        ConfigError: the ending is none of .png, .svg and .pdf.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"{path}: a chart is written as .png, .svg or .pdf, not {path.suffix or 'without an ending'}")


def save(chart: Figure, path: Path) -> None:
    """Write a chart to a .png (twice the pixels), .svg or .pdf file, whole or not at all.

    Raises:
        ConfigError: the ending is none of these.
        OutputError: it cannot be written.
    """
    check_ending(path)
    drawn: io.StringIO | io.BytesIO = io.StringIO() if path.suffix == ".svg" else io.BytesIO()
    chart.save(drawn, format=path.suffix[1:], scale_factor=2 if path.suffix == ".png" else 1)
    text = drawn.getvalue()
    with write_whole(path) as stream:
        stream.write(text.encode() if isinstance(text, str) else text)


def _ages(rows: list[dict[str, Any]], study: Study, title: str, outcomes: Mapping[str, str]) -> Figure:
    unit = "seconds" if study.timed else "requests"
    chart = (
        chart_of(rows)
        .mark_bar(binSpacing=1, opacity=0.85)
        .encode(
            x=alt.X("from:Q", scale=alt.Scale(type="log"), title=f"{title}, {unit}", bin="binned"),
            x2="to:Q",
            y=alt.Y("blocks:Q", stack=True, title="blocks"),
            color=colours("outcome", outcomes),
            tooltip=[
                "outcome:N",
                alt.Tooltip("from:Q", format=",.3~g"),
                alt.Tooltip("to:Q", format=",.3~g"),
                alt.Tooltip("blocks:Q", format=","),
            ],
        )
    )
    return sized(chart)


def _bars(rows: list[dict[str, Any]], field: str, title: str, colour: str) -> Figure:
    chart = (
        chart_of(rows)
        .mark_bar(color=colour)
        .encode(
            x=alt.X(f"{field}:N", sort=[row[field] for row in rows], title=title, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("blocks:Q"),
            tooltip=[f"{field}:N", alt.Tooltip("blocks:Q", format=",")],
        )
    )
    return sized(chart)


def chart_of(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A chart of these rows, for its marks and channels to be named."""
    return alt.Chart(alt.Data(values=rows))  # type: ignore[no-untyped-call]


def colours(field: str, named: Mapping[str, str]) -> Any:
    """Colours by name, in this order; with a legend above the chart if there are several."""
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(named), range=list(named.values())),
        legend=alt.Legend(orient="top", title=None) if len(named) > 1 else None,
    )


def sized(chart: Figure, width: int = WIDTH) -> Figure:
    """It in the size and colours that all charts have."""
    return (
        chart.properties(width=width, height=HEIGHT)
        .configure_view(strokeWidth=0)
        .configure_axis(labelColor=INK, titleColor=INK, gridColor="#e9edf1", labelFontSize=12, titleFontSize=12)
        .configure_legend(orient="bottom", direction="horizontal", columns=8, labelColor=INK, labelFontSize=12)
    )
