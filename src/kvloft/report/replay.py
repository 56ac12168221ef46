"""The report of a replay."""

from collections.abc import Sequence

from kvloft.report import charts
from kvloft.report.charts import Result
from kvloft.report.page import Page, Section
from kvloft.report.study import Study
from kvloft.sim.latency import TimedResult
from kvloft.sim.replay import Survey
from kvloft.sim.sample import SampledResult
from kvloft.sim.sweep import BOUNDS


def replay_page(
    trace: str, counted: Survey, results: Sequence[Result], study: Study | None = None, notes: Sequence[str] = ()
) -> Page:
    """A page about policies and sizes on one trace.

    Args:
        trace: its name.
        counted: what it holds.
        results: of every policy at every size, all of one kind.
        study: a closer look at one of them.
        notes: assumptions that the reader should know.
    """
    lead = (
        f"{counted.requests:,} requests, {counted.blocks:,} block accesses, {counted.unique:,} unique blocks. "
        f"{_meaning(results[0])}"
    )
    sections = [Section("Hit ratio by size", "Click a policy in the legend to single it out.", [charts.curves(results)])]
    sections.append(Section("The same in numbers", " ".join(notes), table=_table(results)))
    if study is not None:
        sections += study_sections(study)
    return Page(f"Replay of {trace}", lead, verdict(results), sections)


def verdict(results: Sequence[Result]) -> list[str]:
    """What the results say, in sentences."""
    real = [result for result in results if result.policy not in BOUNDS]
    if not real:
        return ["Only bounds were computed: no cache reaches them without knowing the future."]
    best = {size: max(group, key=lambda result: result.hit_ratio) for size, group in _by_size(real).items()}
    sentences = []
    names = list(dict.fromkeys(result.policy for result in best.values()))
    if len(names) == 1 and len({result.policy for result in real}) > 1:
        sentences.append(f"{names[0]} serves most at every size.")
    elif len(names) > 1:
        wins = (f"{result.policy} at {size:,} blocks ({result.hit_ratio:.1%})" for size, result in best.items())
        sentences.append(f"No policy is best at every size: {', '.join(wins)}.")
    top = max(result.hit_ratio for result in best.values())
    enough = next(result for result in best.values() if result.hit_ratio >= 0.95 * top)
    sentences.append(
        f"{enough.capacity_blocks:,} blocks ({enough.capacity_fraction:.1%} of the unique ones) with {enough.policy} serve "
        f"{enough.hit_ratio:.1%} of the block accesses; the largest size looked at serves {top:.1%}."
    )
    bound = {result.capacity_blocks: result for result in results if result.policy == "optimum"}
    if enough.capacity_blocks in bound:
        ideal = bound[enough.capacity_blocks].hit_ratio
        sentences.append(f"Knowing the future, a cache of that size would serve {ideal:.1%}.")
    return sentences


def study_sections(study: Study) -> list[Section]:
    """What a closer look shows."""
    share = study.evicted_for_good / study.evicted if study.evicted else 0.0
    subject = f"{study.policy} with {study.capacity:,} blocks"
    sections = [
        Section(
            "Hits over time", f"{subject}. Only what was stored once can be missed with regret.", [charts.over_time(study)]
        ),
        Section("Ages at reuse", f"How long blocks wait for their next use; {subject}.", [charts.reuse_ages(study)]),
        Section(
            "Evicted, and missed later",
            f"{study.evicted:,} blocks were evicted; {share:.1%} of them were not asked for again. Of the others: how soon "
            "they were missed, and where in their prompts they stood.",
            [charts.regrets(study), charts.regret_depths(study)],
        ),
    ]
    shapes = [charts.lengths(study), *([charts.turns(study)] if study.turns else [])]
    return [*sections, Section("Requests and sessions", "" if study.turns else "The trace knows no sessions.", shapes)]


def _by_size(results: Sequence[Result]) -> dict[int, list[Result]]:
    """Results by capacity, ascending."""
    sizes: dict[int, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.capacity_blocks):
        sizes.setdefault(result.capacity_blocks, []).append(result)
    return sizes


def _meaning(result: Result) -> str:
    """What a hit is in such results."""
    if isinstance(result, TimedResult):
        return "A hit is a block that was not computed, wherever it was: on the GPU, in host memory or below."
    ready = "A hit is a block of the leading run of a request's blocks that is resident and ready when the request comes."
    if isinstance(result, SampledResult):
        return f"{ready} Estimated from {result.samples} samples of {result.rate:.3g} of the trace each."
    return ready


def _table(results: Sequence[Result]) -> list[list[str]]:
    return [list(_figures(results[0])), *(list(_figures(result).values()) for result in results)]


def _figures(result: Result) -> dict[str, str]:
    figures = {
        "policy": result.policy,
        "blocks": f"{result.capacity_blocks:,}",
        "of unique": f"{result.capacity_fraction:.1%}",
        "hit ratio": f"{result.hit_ratio:.2%}",
    }
    if isinstance(result, SampledResult):
        return {**figures, "standard error": f"{result.error:.2%}", "refused": f"{result.refused_stores:,}"}
    if isinstance(result, TimedResult):
        figures |= {f"TTFT {at} %": f"{result.ttft_percentiles[at]:.3g} s" for at in ("50", "99")}
    else:
        figures["stored"] = f"{result.stored_blocks:,}"
    return {**figures, "evicted": f"{result.evicted_blocks:,}", "refused": f"{result.refused_stores:,}"}
