"""The report of a plan."""

from typing import Any

from kvloft.config import format_size
from kvloft.errors import MissingExtra
from kvloft.report import charts
from kvloft.report.charts import WIDTH, Figure
from kvloft.report.page import Page, Section
from kvloft.report.plan_table import FIGURES, frontier
from kvloft.sim.advice import PLACES, Advice
from kvloft.sim.planner import Load, Plan, Priced

try:
    import altair as alt
except ImportError as error:
    raise MissingExtra("report", "drawing charts") from error

_PLACE_COLOURS = {"gpu": charts.FIRST, "host": charts.HIT, "disk": charts.PLAIN}


_BOTH_COLOURS = {"without": charts.DIM, "with it": charts.HIT}


def plan_page(trace: str, plan: Plan, advice: Advice, load: Load) -> Page:
    """A page about what to buy.

    Args:
        trace: its name.
        plan: the answer.
        advice: it in words.
        load: the trace's.
    """
    money = plan.prices.currency
    lead = (
        f"{load.survey.requests:,} requests with {load.prompt_tokens:,} tokens in {load.span / 3600:.3g} hours; "
        f"{len(plan.options)} sizes and policies replayed with time and priced."
    )
    shown = plan.runner_up or plan.best
    sections = [
        Section("How sure", " ".join(advice.confidence), [by_slice(plan, shown)] if shown.slice_hit_ratios else []),
        Section(
            "What sizes are worth",
            f"Net in {money} a month: GPU time saved, less host memory and disk. The frame marks the answer.",
            [net_by_size(plan)],
        ),
        Section(
            "Cost and saving",
            f"In {money} a month. Above the dashed line it pays. Click a policy in the legend to single it out.",
            [plan_chart(plan)],
        ),
        Section("Where blocks hit", f"{advice.loading} Options that no other beats, by cost.", [by_place(plan)]),
        Section("Time to first token", "Without anything below the GPU, and with the answer.", [ttft(plan, shown)]),
        Section(
            "The same in numbers",
            f"Money is in {money} a month. Options that cost more and save less than another are left out.",
            table=_table(plan),
        ),
    ]
    if advice.warnings:
        sections.append(Section("Look out", table=[["note"], *([warning] for warning in advice.warnings)]))
    sections.append(Section("What was assumed", table=[["assumption"], *([said] for said in advice.assumptions)]))
    sections.append(Section("vLLM", "Start it with:", code=advice.command))
    return Page(f"Plan for {trace}", lead, advice.verdict, sections)


def plan_chart(plan: Plan) -> Figure:
    """Saving against cost, a point an option; dashed where they are equal."""
    money = f"{plan.prices.currency} a month"
    rows = [
        {
            "policy": "none" if option.nothing else option.policy,
            "cost": option.cost.total,
            "saved": option.saved,
            "net": option.net,
            "host": _size(option.host_bytes),
            "disk": _size(option.disk_bytes),
            "admission": option.admission.value if option.disk_bytes else "-",
            "hits": option.hit_ratio,
            "answer": option is plan.best,
        }
        for option in plan.options
    ]
    most = min(max(option.cost.total for option in plan.options), max(max(option.saved for option in plan.options), 0.0))
    even = charts.chart_of([{"cost": 0.0, "saved": 0.0}, {"cost": most, "saved": most}])
    chosen = alt.selection_point(fields=["policy"], bind="legend", name="chosen")
    points = (
        charts.chart_of(rows)
        .mark_point(filled=True, stroke=charts.INK)
        .encode(
            x=alt.X("cost:Q", title=f"cost, {money}"),
            y=alt.Y("saved:Q", title=f"GPU time saved, {money}"),
            color=alt.Color("policy:N", sort=list(dict.fromkeys(str(row["policy"]) for row in rows))),
            size=alt.condition("datum.answer", alt.value(260), alt.value(55)),
            strokeWidth=alt.condition("datum.answer", alt.value(2.5), alt.value(0)),
            opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.1)),
            tooltip=[
                "policy:N",
                "host:N",
                "disk:N",
                "admission:N",
                alt.Tooltip("hits:Q", format=".1%"),
                alt.Tooltip("cost:Q", format=",.0f"),
                alt.Tooltip("saved:Q", format=",.0f"),
                alt.Tooltip("net:Q", format=",.0f"),
            ],
        )
        .add_params(chosen)
    )
    line = even.mark_line(strokeDash=[6, 4], color=charts.INK, opacity=0.5).encode(x="cost:Q", y="saved:Q")
    return charts.sized(alt.layer(line, points), WIDTH + 60)


def net_by_size(plan: Plan) -> Figure:
    """Net of each host and disk size, with its best policy."""
    best: dict[tuple[int, int], Priced] = {}
    for option in sorted(plan.options, key=lambda one: one.net):
        best[option.host_bytes, option.disk_bytes] = option
    rows = [
        {
            "host": _size(option.host_bytes),
            "disk": _size(option.disk_bytes),
            "net": option.net,
            "label": f"{option.net:,.0f}",
            "policy": option.policy,
            "hits": option.hit_ratio,
            "admission": option.admission.value if option.disk_bytes else "-",
            "answer": option is plan.best,
        }
        for option in best.values()
    ]
    hosts = [_size(size) for size in sorted({host for host, _ in best})]
    disks = [_size(size) for size in sorted({disk for _, disk in best}, reverse=True)]
    reach = max(max(abs(option.net) for option in plan.options), 1e-9)
    base = charts.chart_of(rows).encode(
        x=alt.X("host:N", sort=hosts, title="host memory", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("disk:N", sort=disks, title="disk"),
    )
    cells_of = base.mark_rect(cornerRadius=3).encode(
        color=alt.Color(
            "net:Q", scale=alt.Scale(domain=[-reach, 0, reach], range=[charts.REGRET, "#f5f7f9", charts.HIT]), legend=None
        ),
        stroke=alt.condition("datum.answer", alt.value(charts.INK), alt.value("white")),
        strokeWidth=alt.condition("datum.answer", alt.value(3), alt.value(1)),
        tooltip=[
            "host:N",
            "disk:N",
            "policy:N",
            "admission:N",
            alt.Tooltip("hits:Q", format=".1%"),
            alt.Tooltip("net:Q", format=",.0f"),
        ],
    )
    return charts.sized(alt.layer(cells_of, base.mark_text(color=charts.INK, fontSize=12).encode(text="label:N")))


def by_place(plan: Plan) -> Figure:
    """Where the blocks of each option on the frontier hit."""
    shown = frontier(plan)
    names = [_name(option) for option in shown]
    rows: list[dict[str, Any]] = [
        {"option": name, "place": label, "ratio": option.hit_ratios.get(place, 0.0), "order": order}
        for name, option in zip(names, shown, strict=True)
        for order, (place, label) in enumerate(PLACES.items())
    ]
    chart = (
        charts.chart_of(rows)
        .mark_bar()
        .encode(
            x=alt.X("ratio:Q", axis=alt.Axis(format="%"), title="blocks that hit"),
            y=alt.Y("option:N", sort=names, title=None, axis=alt.Axis(labelLimit=260)),
            color=charts.colours("place", {label: _PLACE_COLOURS[place] for place, label in PLACES.items()}),
            order=alt.Order("order:Q"),
            tooltip=["option:N", "place:N", alt.Tooltip("ratio:Q", format=".2%")],
        )
    )
    return charts.sized(chart, WIDTH - 140)


def by_slice(plan: Plan, option: Priced) -> Figure:
    """Hit ratio of an option and of the baseline in each part of the time."""
    rows = [
        {"part": at, "what": name, "ratio": ratio}
        for name, one in _both(plan, option).items()
        for at, ratio in enumerate(one.slice_hit_ratios, 1)
    ]
    chart = (
        charts.chart_of(rows)
        .mark_bar()
        .encode(
            x=alt.X("part:O", title="part of the trace's time", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("what:N", sort=list(_BOTH_COLOURS)),
            y=alt.Y("ratio:Q", axis=alt.Axis(format="%"), title="blocks that hit"),
            color=charts.colours("what", _BOTH_COLOURS),
            tooltip=["part:O", "what:N", alt.Tooltip("ratio:Q", format=".2%")],
        )
    )
    return charts.sized(chart)


def ttft(plan: Plan, option: Priced) -> Figure:
    """Percentiles of the time to first token of an option and of the baseline."""
    rows = [
        {"percentile": f"{at} %", "what": name, "seconds": seconds}
        for name, one in _both(plan, option).items()
        for at, seconds in one.ttft_percentiles.items()
    ]
    base = charts.chart_of(rows).encode(
        y=alt.Y("percentile:N", title="requests", axis=alt.Axis(grid=True)),
        x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds at most"),
    )
    ways = base.mark_line(color=charts.INK, opacity=0.3).encode(detail="percentile:N")
    points = base.mark_point(filled=True, opacity=1, size=160).encode(
        color=charts.colours("what", _BOTH_COLOURS),
        tooltip=["percentile:N", "what:N", alt.Tooltip("seconds:Q", format=".3~g")],
    )
    return charts.sized(alt.layer(ways, points).properties(height=160))


def _both(plan: Plan, option: Priced) -> dict[str, Priced]:
    """An option and the baseline, as their charts call them."""
    return {"without": plan.baseline, "with it": option}


_NAMED = ("host", "disk", "policy", "to disk")
"""Figures that an option's name tells."""


def _table(plan: Plan) -> list[list[str]]:
    """A row an option of the frontier; numbers stay on one line with their units."""
    figures = {name: text for name, text in FIGURES.items() if name not in _NAMED}
    return [["option", *figures]] + [
        [_name(option), *(text(option).replace(" ", "\u00a0") for text in figures.values())] for option in frontier(plan)
    ]


def _name(option: Priced) -> str:
    if option.nothing:
        return "nothing"
    disk = f" + {_size(option.disk_bytes)} disk" if option.disk_bytes else ""
    ways = f", {option.admission.value}" if option.disk_bytes else ""
    return f"{_size(option.host_bytes)}{disk}, {option.policy}{ways}"


def _size(nbytes: int) -> str:
    return format_size(nbytes) if nbytes else "0"
