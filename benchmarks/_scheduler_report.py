"""The tables and the plot of docs/performance.md, from the figures of benchmarks/scheduler.py."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
Cost = Mapping[str, Any]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CALLS = (
    "on_new_request",
    "lookup",
    "prepare_load",
    "complete_load",
    "prepare_store",
    "complete_store",
    "on_request_finished",
)
_END = ("find residents", "find that positions ascend", "move in a queue")
_HIT = ("lookup, key by key", "each key once, hashing it", "pin", "unpin", *_END)
_STORE = (
    *("each key once, hashing it", "find that none is there", "take free slots", "enter a queue", "find residents"),
    *("each key once", "give up slots", *_END),
)
STEPS = {
    ("lru", "hit"): _HIT,
    ("arc", "hit"): _HIT,
    ("lru", "store"): (*_STORE, "leave a queue"),
    ("arc", "store"): (*_STORE, "find that none is there", "move in a queue", "leave a queue"),
}
"""What a block of a request must cost: steps of benchmarks/tables.py. That no victim is named twice, too."""


def write(figures: Figures, document: Path) -> None:
    """Put what was measured between the document's markers, and the plot beside it."""
    before, _, after = document.read_text().partition(BEGIN)
    _, _, after = after.partition(END)
    document.write_text(f"{before}{BEGIN}\n\n{text(figures)}\n\n{END}{after}")
    plot(figures["costs"], document.with_suffix(".svg"))


def text(figures: Figures) -> str:
    """All tables for which there are figures."""
    facts = figures["machine"]
    parts = [
        f"Measured on {facts['cpu']}, at a load of {facts['load']} when it began; Python {facts['python']}, "
        f"vLLM {facts['vllm']}, numpy {facts['numpy']}. {figures['requests']} requests drawn from {figures['different']}."
    ]
    if "costs" in figures:
        parts += [_aims(figures), _costs(figures), _calls(figures["costs"])]
    if "waiting" in figures:
        parts.append(_waiting(figures["waiting"]))
    if "pins" in figures:
        parts.append(_pins(figures["pins"]))
    if "memory" in figures:
        parts.append(_memory(figures["memory"]))
    if "steps" in figures:
        parts.append(_steps(figures["steps"]))
        if "costs" in figures:
            parts.append(_counted(figures["costs"], figures["steps"]))
    return "\n\n".join(parts)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    rows = [head, [*["---"] * left, *["---:"] * (len(head) - left)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _pairs(figures: Figures) -> Iterator[tuple[Cost, Cost]]:
    """Each of kvloft's costs, and the stock manager's of the same series."""
    costs = figures["costs"]
    stock = {(c["policy"], c["capacity"], c["size"], c["state"]): c for c in costs if c["manager"] == "stock"}
    for cost in costs:
        if cost["manager"] == "kvloft":
            yield cost, stock[figures["against"][cost["policy"]], cost["capacity"], cost["size"], cost["state"]]


def _range(values: Iterable[float], digits: int) -> str:
    known = sorted(values)
    if not known:
        return ""
    least, most = f"{known[0]:.{digits}f}", f"{known[-1]:.{digits}f}"
    return least if least == most else f"{least} to {most}"


def _aims(figures: Figures) -> str:
    pairs = list(_pairs(figures))
    policies = list(figures["against"])
    sizes = sorted({ours["size"] for ours, _ in pairs})
    capacities = sorted({ours["capacity"] for ours, _ in pairs})

    def growth(policy: str) -> Iterator[float]:
        spent = {(c["capacity"], c["size"], c["state"]): c["ns_a_block"] for c, _ in pairs if c["policy"] == policy}
        for size in sizes:
            if len(capacities) > 1 and (capacities[-1], size, "full") in spent:
                yield spent[capacities[-1], size, "full"] / spent[capacities[0], size, "full"]

    lines = [
        [f"time a block by stock's, requests of {size:,}", "at most 0.1"]
        + [
            _range((c["ns_a_block"] / s["ns_a_block"] for c, s in pairs if (c["policy"], c["size"]) == (policy, size)), 2)
            for policy in policies
        ]
        for size in sizes
    ]
    lines.append(
        [f"longest call, {capacities[-1]:,} blocks", "at most 10 ms"]
        + [
            f"{max(c['longest_ms'] for c, _ in pairs if (c['policy'], c['capacity']) == (policy, capacities[-1])):.1f} ms"
            for policy in policies
        ]
    )
    if len(capacities) > 1:
        lines.append(
            [f"a block at {capacities[-1]:,} by one at {capacities[0]:,}, full", "below 1.5"]
            + [_range(growth(policy), 2) for policy in policies]
        )
    if "memory" in figures:
        size = {m["policy"]: f"{m['bytes_a_block']:.0f}" for m in figures["memory"] if m["manager"] == "kvloft"}
        lines.append(["bytes a block", "at most 250", *map(size.__getitem__, policies)])
    return "### The aims\n\n" + _table(["", "aim", *policies], lines, left=2)


def _costs(figures: Figures) -> str:
    lines = [
        [
            ours["policy"],
            f"{ours['capacity']:,}",
            f"{ours['size']:,}",
            ours["state"],
            f"{ours['hit_ratio']:.0%}",
            f"{stock['ns_a_block']:.0f}",
            f"{ours['ns_a_block']:.0f}",
            f"{ours['ns_a_block'] / stock['ns_a_block']:.3f}",
            f"{stock['longest_ms']:.1f} ms",
            f"{ours['longest_ms']:.1f} ms ({ours['longest_call']})",
        ]
        for ours, stock in sorted(_pairs(figures), key=lambda pair: list(figures["against"]).index(pair[0]["policy"]))
    ]
    head = ["policy", "capacity", "request", "state", "hits", "stock, ns a block", "kvloft", "ratio", "longest call, stock"]
    return "### Time a block, and the longest call\n\n" + _table([*head, "kvloft"], lines)


def _calls(costs: Sequence[Cost]) -> str:
    capacity = max(cost["capacity"] for cost in costs)
    lines = [
        [
            cost["policy"],
            f"{cost['size']:,}",
            cost["state"],
            *(f"{cost['by_call'].get(name, 0):.0f}" for name in CALLS),
        ]
        for cost in sorted(costs, key=lambda cost: cost["policy"])
        if (cost["manager"], cost["capacity"]) == ("kvloft", capacity)
    ]
    head = ["policy", "request", "state", *(f"`{name}`" for name in CALLS)]
    return f"### By call\n\nNanoseconds a block of kvloft's, {capacity:,} blocks.\n\n" + _table(head, lines)


def _waiting(waiting: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        [manager, f"{spent[manager]:.0f}", f"{spent['probe']:.0f}", f"{spent[manager] / spent['probe']:.2f}"]
        for manager, spent in waiting.items()
    ]
    head = ["manager", "ns a lookup", "ns a probe", "ratio"]
    what = "18 requests of 2,048 blocks looked up at 100 steps, beside a dictionary as large behind one Python method."
    return f"### Waiting requests\n\n{what}\n\n" + _table(head, lines)


def _pins(rows: Sequence[Mapping[str, float]]) -> str:
    evicted = sorted({row["evicted"] for row in rows})
    spent = {(row["pinned"], row["evicted"]): f"{row['ms']:.2f} ms" for row in rows}
    lines = [[f"{pinned:,}", *(spent[pinned, n] for n in evicted)] for pinned in sorted({row["pinned"] for row in rows})]
    head = ["pinned", *(f"evicting {n:,}" for n in evicted)]
    return "### Evicting while the oldest blocks are pinned\n\nA store by LRU, 100,000 blocks.\n\n" + _table(head, lines)


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    size = {(row["manager"], row["policy"]): f"{row['bytes_a_block']:.0f}" for row in rows}
    lines = [[manager, *(size.get((manager, policy), "") for policy in policies)] for manager in ("stock", "kvloft")]
    what = "Bytes a block by which a process grows that fills a manager of a million blocks twice, keys and ghosts included."
    return f"### Memory\n\n{what}\n\n" + _table(["manager", *policies], lines)


def _steps(steps: Sequence[Mapping[str, Any]]) -> str:
    lines = [[row["step"], f"{row['ns']:.0f}"] for row in steps]
    return (
        "### Steps\n\nNanoseconds a key of each step alone, in tables of the larger capacity (`benchmarks/tables.py`).\n\n"
        + _table(["step", "ns"], lines)
    )


def _counted(costs: Sequence[Cost], steps: Sequence[Mapping[str, Any]]) -> str:
    step = {row["step"]: row["ns"] for row in steps}
    capacity = max(cost["capacity"] for cost in costs)
    lines = []
    for cost in sorted(costs, key=lambda cost: cost["policy"]):
        if (cost["manager"], cost["capacity"]) != ("kvloft", capacity) or (cost["policy"], "hit") not in STEPS:
            continue
        if cost["size"] < 1000 or (cost["state"] == "warm" and cost["hit_ratio"] < 1):
            continue
        hit, store = (sum(map(step.__getitem__, STEPS[cost["policy"], what])) for what in ("hit", "store"))
        counted = cost["hit_ratio"] * hit + (1 - cost["hit_ratio"]) * store
        spent = cost["ns_a_block"]
        hits = f"{cost['hit_ratio']:.0%}"
        figures = [f"{counted:.0f}", f"{spent:.0f}", f"{spent / counted:.2f}"]
        lines.append([cost["policy"], f"{cost['size']:,}", cost["state"], hits, *figures])
    head = ["policy", "request", "state", "hits", "counted", "measured", "measured by counted"]
    what = f"Nanoseconds a block, {capacity:,} blocks: the sum of a block's steps, and what it took."
    return f"### Counted and measured\n\n{what}\n\n" + _table(head, lines)


def plot(costs: Sequence[Cost], file: Path) -> None:
    """Time a block against capacity, for requests of the largest size on a full cache."""
    import altair as alt

    from kvloft.report import charts

    size = max(cost["size"] for cost in costs)
    rows = [
        {"capacity": c["capacity"], "us": c["ns_a_block"] / 1000, "manager": c["manager"], "policy": c["policy"]}
        for c in costs
        if (c["size"], c["state"]) == (size, "full")
    ]
    base = charts.chart_of(rows).encode(
        x=alt.X("capacity:Q", scale=alt.Scale(type="log"), title="capacity, blocks"),
        y=alt.Y("us:Q", scale=alt.Scale(type="log"), title="microseconds a block over a request's life"),
        color=alt.Color("policy:N"),
        strokeDash=alt.StrokeDash("manager:N", scale=alt.Scale(domain=["kvloft", "stock"], range=[[1, 0], [6, 4]])),
    )
    lines = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=40))
    charts.save(charts.sized(lines).properties(title=f"Requests of {size:,} blocks, cache full"), file)
