"""A plan on the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvloft.report.plan_table import FIGURES, frontier
from kvloft.sim.advice import Advice
from kvloft.sim.planner import Plan, Priced
from kvloft.traces.trace import Trace


def print_plan(console: Console, trace: Trace, plan: Plan, advice: Advice) -> None:
    """The table, the answer, how sure it is, what was assumed, and the flags."""
    title = f"{trace.name}: {len(plan.options)} sizes and policies, replayed and priced"
    console.print(title, style="italic", markup=False)
    console.print(_table(plan, max(3, (console.width - 20) // 12)))
    console.print(
        f"Money is in {plan.prices.currency} a month; * marks the answer. Options that another beats are left out.\n"
    )
    for sentence in advice.verdict:
        console.print(sentence, style="bold")
    console.print()
    for sentence in [*advice.confidence, advice.loading]:
        console.print(sentence)
    for warning in advice.warnings:
        console.print(Text.assemble(("Note: ", "bold yellow"), warning))
    console.print("\nAssumed:")
    for assumption in advice.assumptions:
        console.print(f"- {assumption}")
    if trace.skipped:
        console.print(f"- {trace.skipped:,} bad lines or files were left out.")
    console.print("\nStart vLLM with:\n")
    console.print(advice.command, soft_wrap=True, markup=False)


def _table(plan: Plan, most: int) -> Table:
    """A column an option: the baseline, and those of the frontier that are nearest to the answer."""
    table = Table()
    table.add_column("")
    shown = _nearest(plan, most)
    for option in shown:
        table.add_column("*" if option is plan.best else "", justify="right", style="bold" if option is plan.best else None)
    for name, text in FIGURES.items():
        table.add_row(name, *map(text, shown))
    return table


def _nearest(plan: Plan, most: int) -> list[Priced]:
    options = frontier(plan)
    if plan.runner_up is not None and plan.runner_up not in options:
        options.append(plan.runner_up)
    at = options.index(plan.best)
    near = sorted(range(len(options)), key=lambda place: (abs(place - at), place))[: most - 1]
    return [options[place] for place in sorted({0, *near})]
