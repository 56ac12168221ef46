"""`kvloft curve`: hit ratio by cache size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvloft.cli import _trace_options as options

if TYPE_CHECKING:
    from kvloft.report.page import Page
    from kvloft.sim.replay import ReplayResult
    from kvloft.sim.sample import SampledResult


def curve(
    trace: options.Trace,
    policy: Annotated[
        str, typer.Option(help="Policies, separated by commas; optimum and min know the future.")
    ] = "lru,optimum",
    capacity: Annotated[
        str,
        typer.Option(
            help="Sizes, separated by commas: shares of the unique blocks (5%) or blocks (20000).",
            show_default="twelve from 0.5% to 100%",
        ),
    ] = "0.5%,1%,2%,3%,5%,7%,10%,15%,20%,30%,50%,100%",
    sample: Annotated[
        float | None, typer.Option(help="Estimate from samples of this rate each, such as 0.05, and show the error.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="How many samples.")] = 4,
    form: options.Format = None,
    skip_bad: options.SkipBad = False,
    block_tokens: options.BlockTokens = None,
    seed: options.Seed = 0,
    spread_minutes: options.SpreadMinutes = 240.0,
    shared_prefix: options.SharedPrefix = False,
    jobs: options.Jobs = None,
    json: options.Json = None,
    html: options.Html = None,
    plot: options.Plot = None,
) -> None:
    """Hit ratio by cache size, for several policies.

    LRU takes one pass for all sizes and is exact; other policies are replayed at each size, on all cores. With --sample they
    are replayed on samples of the trace that keep chains whole, in caches smaller by as much.
    """
    from kvloft.cli._outputs import Outputs, draw_curves
    from kvloft.cli._progress import progress
    from kvloft.cli._results import print_estimates, print_ratios
    from kvloft.sim.curve import curves
    from kvloft.sim.replay import Capacity, survey, watched
    from kvloft.sim.sample import estimate, find_trunk
    from kvloft.sim.sweep import check_policies

    outputs = Outputs(json, html, plot)
    outputs.check(trace)
    sizes = [Capacity.parse(size) for size in capacity.split(",")]
    names = [name.strip() for name in policy.split(",")]
    opened = options.open_given(trace, form, skip_bad, block_tokens, seed, spread_minutes, shared_prefix)
    check_policies(names)
    results: Sequence[ReplayResult | SampledResult]
    if sample is None:
        with progress("bytes read") as tell:
            counted = survey(watched(opened, tell))
        with progress("blocks") as tell:
            results = exact = curves(opened, names, sizes, jobs, tell, counted)
        print_ratios(outputs.console, opened, exact)
    else:
        with progress("bytes read") as tell:
            counted, trunk = find_trunk(watched(opened, tell))
        with progress("blocks") as tell:
            results = estimates = estimate(opened, names, sizes, sample, samples, seed, jobs, tell, (counted, trunk))
        print_estimates(outputs.console, opened, estimates)

    def page() -> "Page":
        from kvloft.report.replay import replay_page

        return replay_page(opened.name, counted, results, notes=opened.assumptions)

    outputs.write(results, lambda: draw_curves(results), page)
