"""A plan as a table, for the terminal and for the page."""

from collections.abc import Callable

from kvloft.config import format_size
from kvloft.sim.advice import seconds_text
from kvloft.sim.planner import Plan, Priced

FIGURES: dict[str, Callable[[Priced], str]] = {
    "host": lambda one: format_size(one.host_bytes) if one.host_bytes else "-",
    "disk": lambda one: format_size(one.disk_bytes) if one.disk_bytes else "-",
    "policy": lambda one: "-" if one.nothing else one.policy,
    "to disk": lambda one: one.admission.value if one.disk_bytes else "-",
    "hits": lambda one: f"{one.hit_ratio:.1%}",
    "prefill saved": lambda one: seconds_text(one.prefill_seconds_saved),
    "GPU h/day saved": lambda one: f"{one.gpu_hours_saved_a_day:.2f}",
    "TTFT 50 %": lambda one: seconds_text(one.ttft_percentiles["50"]),
    "TTFT 99 %": lambda one: seconds_text(one.ttft_percentiles["99"]),
    "written a day": lambda one: format_size(round(one.written_a_day)) if one.disk_bytes else "-",
    "of endurance": lambda one: f"{one.cost.wear:.0%}" if one.disk_bytes else "-",
    "cost": lambda one: f"{one.cost.total:,.0f}",
    "saved": lambda one: f"{one.saved:,.0f}",
    "net": lambda one: f"{one.net:,.0f}",
}
"""What each figure of an option is, as text. Money is a month's."""


def frontier(plan: Plan) -> list[Priced]:
    """The options that no other beats: none saves as much for less. By cost, ascending; the best is always among them."""
    kept: list[Priced] = []
    for option in sorted(plan.options, key=lambda one: (one.cost.total, -one.saved, one is not plan.best)):
        if option is plan.best or not kept or option.saved > max(one.saved for one in kept):
            kept.append(option)
    return kept
