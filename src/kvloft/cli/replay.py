"""`kvloft replay`: a trace through the pool that serves."""

from pathlib import Path
from typing import Annotated

import typer


def replay(
    trace: Annotated[Path, typer.Argument(help="The trace: a file, plain, .gz or .zst.")],
    policy: Annotated[str, typer.Option(help="Policies, separated by commas; optimum and min know the future.")] = "default",
    capacity: Annotated[
        str, typer.Option(help="Sizes, separated by commas: shares of the unique blocks (5%) or blocks (20000).")
    ] = "1%,2%,5%,10%,20%,50%",
    form: Annotated[str | None, typer.Option("--format", help="The trace's format, if it is not to be detected.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out bad lines and count them.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; as many as there are cores if not given.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file.")] = None,
) -> None:
    """Replay a trace through the pool and say how many blocks hit.

    A hit is a block of the leading run of a request's blocks that is resident and ready. What is missing is then stored.
    Requests come one after another.
    """
    from kvloft.cli._progress import progress
    from kvloft.cli._results import print_ratios, write_json
    from kvloft.sim.replay import Capacity
    from kvloft.sim.sweep import sweep
    from kvloft.traces.formats import open_trace

    sizes = [Capacity.parse(size) for size in capacity.split(",")]
    opened = open_trace(trace, form, skip_bad)
    names = [name.strip() for name in policy.split(",")]
    with progress("blocks") as tell:
        results = sweep(opened, names, sizes, jobs, tell)
    print_ratios(opened, results)
    if json:
        write_json(json, results)
