"""`kvloft curve`: hit ratio by cache size."""

from typing import Annotated

import typer

from kvloft.cli import _trace_options as options


def curve(
    trace: options.Trace,
    policy: Annotated[
        str, typer.Option(help="Policies, separated by commas; optimum and min know the future.")
    ] = "lru,optimum",
    capacity: Annotated[
        str, typer.Option(help="Sizes, separated by commas: shares of the unique blocks (5%) or blocks (20000).")
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
) -> None:
    """Hit ratio by cache size, for several policies.

    LRU takes one pass for all sizes and is exact; other policies are replayed at each size, on all cores. With --sample they
    are replayed on samples of the trace that keep chains whole, in caches smaller by as much.
    """
    from kvloft.cli._progress import progress
    from kvloft.cli._results import print_estimates, print_ratios, write_json
    from kvloft.sim.curve import curves
    from kvloft.sim.replay import Capacity, survey, watched
    from kvloft.sim.sample import estimate, find_trunk
    from kvloft.sim.sweep import check_policies
    from kvloft.traces.formats import open_trace

    sizes = [Capacity.parse(size) for size in capacity.split(",")]
    names = [name.strip() for name in policy.split(",")]
    opened = open_trace(
        trace,
        form,
        skip_bad=skip_bad,
        block_tokens=block_tokens,
        seed=seed,
        spread=60 * spread_minutes,
        shared_prefix=shared_prefix,
    )
    check_policies(names)
    if sample is None:
        with progress("bytes read") as tell:
            counted = survey(watched(opened, tell))
        with progress("blocks") as tell:
            results = curves(opened, names, sizes, jobs, tell, counted)
        print_ratios(opened, results)
        if json:
            write_json(json, results)
        return
    with progress("bytes read") as tell:
        found = find_trunk(watched(opened, tell))
    with progress("blocks") as tell:
        estimates = estimate(opened, names, sizes, sample, samples, seed, jobs, tell, found)
    print_estimates(opened, estimates)
    if json:
        write_json(json, estimates)
