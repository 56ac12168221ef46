"""Options that all commands on traces share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvloft.traces.trace import Trace as OpenTrace

Trace = Annotated[Path, typer.Argument(help="The trace: a file, plain, .gz or .zst, or a folder of sessions.")]
Format = Annotated[
    str | None, typer.Option("--format", help="kvloft, mooncake, qwen or sessions, if it is not to be detected.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out bad lines and count them.")]
BlockTokens = Annotated[int | None, typer.Option(min=1, help="Join blocks to this many tokens; a multiple of the trace's.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what the trace does not say: when sessions begin.")]
SpreadMinutes = Annotated[float, typer.Option(min=0, help="Time over which sessions begin, if the trace does not say.")]
SharedPrefix = Annotated[
    bool,
    typer.Option("--shared-prefix", help="Model that sessions share tool and system prompts (session JSON)."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; as many as there are cores if not given.")]
Json = Annotated[
    Path | None,
    typer.Option("--json", help="Write the results to this file as JSON; without a name, print them."),
]
Html = Annotated[Path | None, typer.Option(help="Write a report to this file: one page with charts, for any browser.")]
Plot = Annotated[Path | None, typer.Option(help="Write the curves to this file: .svg, .png or .pdf.")]


def open_given(
    trace: Path,
    form: str | None,
    skip_bad: bool,
    block_tokens: int | None,
    seed: int,
    spread_minutes: float,
    shared_prefix: bool,
) -> "OpenTrace":
    """The trace that these options describe.

    Raises:
        TraceError: it cannot be read.
    """
    from kvloft.traces.formats import open_trace

    spread = 60 * spread_minutes
    return open_trace(
        trace, form, skip_bad=skip_bad, block_tokens=block_tokens, seed=seed, spread=spread, shared_prefix=shared_prefix
    )
