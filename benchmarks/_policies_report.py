"""The tables and the plot of docs/policies.md, from the rows of benchmarks/policies.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair

Row = Mapping[str, Any]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(rows: Sequence[Row], document: Path, ablations: Mapping[str, str], tuned: str, rest: str) -> None:
    """Put what was measured between the document's markers, and the plot beside it."""
    text = document.read_text()
    before, _, after = text.partition(BEGIN)
    _, _, after = after.partition(END)
    names = list(dict.fromkeys(row["trace"] for row in rows))
    parts = [_trace(rows, name) for name in names]
    parts.append(_told(rows))
    parts.append(_ablation(rows, ablations, tuned, rest))
    parts.append(_time(rows))
    document.write_text(f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}")
    _plot(rows, names).save(document.with_suffix(".svg"))


def select(rows: Sequence[Row], trace: str, policy: str, told: float | None = None) -> list[Row]:
    """One policy on one trace, by size."""
    found = [row for row in rows if (row["trace"], row["policy"], row["told"]) == (trace, policy, told)]
    return sorted(found, key=lambda row: row["size"])


def ratios(rows: Sequence[Row]) -> list[float]:
    """Hit ratios in per cent."""
    return [100 * row["hits"] / row["total"] for row in rows]


def closed(rows: Sequence[Row], trace: str, policy: str, told: float | None = None) -> float:
    """Share of the gap from LRU to the bound that a policy closes, summed over the sizes, in per cent."""
    lru, bound = sum(ratios(select(rows, trace, "lru"))), sum(ratios(select(rows, trace, "optimum")))
    return 100 * (sum(ratios(select(rows, trace, policy, told))) - lru) / (bound - lru)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _sizes(rows: Sequence[Row]) -> list[str]:
    return [f"{size:.0%}" for size in sorted({row["size"] for row in rows})]


def _trace(rows: Sequence[Row], trace: str) -> str:
    lru = select(rows, trace, "lru")
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in rows if row["trace"] == trace and row["told"] is None):
        if policy.startswith("hdi-"):
            continue
        own = select(rows, trace, policy)
        bound = policy == "optimum"
        worst = min(mine - its for mine, its in zip(ratios(own), ratios(lru), strict=True))
        lines.append(
            [
                f"*{policy}*" if bound else policy,
                *(f"{ratio:.1f}" for ratio in ratios(own)),
                f"{closed(rows, trace, policy):.0f} %",
                f"{worst:+.2f}",
                "" if bound else f"{sum(row['stored'] for row in own) / sum(row['stored'] for row in lru):.2f}",
            ]
        )
    head = ["policy", *_sizes(rows), "gap closed", "worst cell", "stores"]
    return f"### {trace[0].upper()}{trace[1:]}\n\n{_table(head, lines)}"


def _told(rows: Sequence[Row]) -> str:
    lines = []
    for trace, policy, told in dict.fromkeys((row["trace"], row["policy"], row["told"]) for row in rows):
        if told is not None:
            own = select(rows, trace, policy, told)
            lines.append(
                [
                    trace,
                    policy,
                    f"{told:.0%}",
                    *(f"{r:.1f}" for r in ratios(own)),
                    f"{closed(rows, trace, policy, told):.0f} %",
                ]
            )
    head = ["trace", "policy", "ends told", *_sizes(rows), "gap closed"]
    return f"### Told when conversations end\n\n{_table(head, lines)}"


def _ablation(rows: Sequence[Row], ablations: Mapping[str, str], tuned: str, rest: str) -> str:
    lines = []
    for policy, what in ablations.items():
        if all(select(rows, trace, policy) for trace in (tuned, rest)):
            worst = min(
                mine - its
                for trace in (tuned, rest)
                for mine, its in zip(ratios(select(rows, trace, policy)), ratios(select(rows, trace, "lru")), strict=True)
            )
            gaps = [f"{closed(rows, trace, policy):.1f} %" for trace in (tuned, rest)]
            stores = sum(row["stored"] for t in (tuned, rest) for row in select(rows, t, policy))
            stores /= sum(row["stored"] for t in (tuned, rest) for row in select(rows, t, "lru"))
            lines.append([what, *gaps, f"{worst:+.2f}", f"{stores:.2f}"])
    head = ["HDI with", tuned, rest, "worst cell", "stores"]
    return f"### What each part of HDI brings\n\nGap closed.\n\n{_table(head, lines)}"


def _time(rows: Sequence[Row]) -> str:
    spent: dict[str, float] = {}
    for row in rows:
        if row["told"] is None and row["policy"] != "optimum" and not row["policy"].startswith("hdi-"):
            spent[row["policy"]] = spent.get(row["policy"], 0.0) + row["seconds"]
    lines = [[policy, f"{seconds / spent['lru']:.1f}"] for policy, seconds in spent.items()]
    return "### Time a block\n\nProcessor time of all replays above, by LRU's in the same run.\n\n" + _table(
        ["policy", "by LRU's"], lines
    )


def _plot(rows: Sequence[Row], traces: Sequence[str]) -> Any:
    shown = ("lru", "arc", "s3-fifo", "lru-2", "hdi", "optimum")
    points = [
        {"trace": row["trace"], "policy": row["policy"], "size": row["size"], "hits": row["hits"] / row["total"]}
        for row in rows
        if row["told"] is None and row["policy"] in shown
    ]
    return (
        altair.Chart(altair.InlineData(points))
        .mark_line(point=True)
        .encode(
            x=altair.X("size:Q", scale=altair.Scale(type="log"), axis=altair.Axis(format="%"), title="of the unique blocks"),
            y=altair.Y("hits:Q", axis=altair.Axis(format="%"), title="blocks that hit"),
            color=altair.Color("policy:N", sort=list(shown)),
        )
        .properties(width=260, height=180)
        .facet(altair.Facet("trace:N", sort=list(traces), title=None), columns=3)
        .resolve_scale(y="independent")
    )
