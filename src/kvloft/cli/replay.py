"""`kvloft replay`: a trace through the pool that serves."""

from typing import Annotated

import typer

from kvloft.cli import _trace_options as options


def replay(
    trace: options.Trace,
    policy: Annotated[str, typer.Option(help="Policies, separated by commas; optimum and min know the future.")] = "default",
    capacity: Annotated[
        str, typer.Option(help="Sizes, separated by commas: shares of the unique blocks (5%) or blocks (20000).")
    ] = "1%,2%,5%,10%,20%,50%",
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
    """Replay a trace through the pool and say how many blocks hit.

    A hit is a block of the leading run of a request's blocks that is resident and ready. What is missing is then stored.
    Requests come one after another.
    """
    from kvloft.cli._progress import progress
    from kvloft.cli._results import print_ratios, write_json
    from kvloft.sim.replay import Capacity, survey
    from kvloft.sim.sweep import BOUNDS, sweep
    from kvloft.traces.formats import open_trace

    sizes = [Capacity.parse(size) for size in capacity.split(",")]
    opened = open_trace(
        trace,
        form,
        skip_bad=skip_bad,
        block_tokens=block_tokens,
        seed=seed,
        spread=60 * spread_minutes,
        shared_prefix=shared_prefix,
    )
    names = [name.strip() for name in policy.split(",")]
    if html or plot:
        from kvloft.report import charts
        from kvloft.report.replay import replay_page
        from kvloft.report.study import study

        if plot:
            charts.check_ending(plot)
    counted = survey(opened)
    with progress("blocks") as tell:
        results = sweep(opened, names, sizes, jobs, tell, counted)
    print_ratios(opened, results)
    if json:
        write_json(json, results)
    if plot:
        charts.save(charts.curves(results), plot)
    if html:
        real = [result for result in results if result.policy not in BOUNDS]
        closer = study(opened, real[0].policy, sorted(r.capacity_blocks for r in real)[len(real) // 2]) if real else None
        replay_page(opened.name, counted, results, closer, opened.assumptions).write(html)
