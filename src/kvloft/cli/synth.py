"""`kvloft synth`: a generated trace."""

from pathlib import Path
from typing import Annotated

import typer


def synth(
    out: Annotated[Path, typer.Argument(help="The file to write; compressed if it ends in .gz or .zst.")],
    requests: Annotated[int, typer.Option(min=1, help="How many requests.")] = 10_000,
    mix: Annotated[
        str,
        typer.Option(
            help="Kinds of sessions and their weights: chat, agents, rag, scan.",
            show_default="all: chat=0.6, agents=0.1, rag=0.25, scan=0.05",
        ),
    ] = "chat=0.6,agents=0.1,rag=0.25,scan=0.05",
    rate: Annotated[float, typer.Option(help="Sessions that begin in a second.")] = 2.0,
    tenants: Annotated[int, typer.Option(min=1, help="Tenants; they share no block.")] = 1,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens a block.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal traces.")] = 0,
    parameters: Annotated[
        Path | None, typer.Option(help="A JSON file with a whole workload; the other options, if given, do not apply.")
    ] = None,
) -> None:
    """Write a trace of generated requests. Defaults are statistics of public traces, as far as those have them."""
    from kvloft.cli._progress import progress
    from kvloft.files import check_outputs
    from kvloft.traces.synth import Workload, parse_mix, read_workload, synthesize, write_trace

    check_outputs(out, inputs=[parameters] if parameters else ())
    if parameters:
        workload = read_workload(parameters)
    else:
        workload = Workload(
            requests=requests,
            seed=seed,
            block_tokens=block_tokens,
            sessions_a_second=rate,
            tenants=tenants,
            mix=parse_mix(mix),
        )
    with progress("requests") as tell:
        count, blocks = write_trace(out, workload, synthesize(workload), tell)
    typer.echo(f"{out}: {count:,} requests, {blocks:,} block accesses of {workload.block_tokens} tokens")
