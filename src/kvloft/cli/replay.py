"""`kvloft replay`: a trace through the pool that serves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvloft.cli import _trace_options as options

if TYPE_CHECKING:
    from kvloft.report.page import Page
    from kvloft.sim.latency import TimedResult
    from kvloft.sim.replay import ReplayResult

_TIMED = "Replay with time"


def replay(
    ctx: typer.Context,
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
    hints: Annotated[
        str | None,
        typer.Option(
            help="What callers tell, instead of the trace: session-end=0.5 tells half of the ends of conversations."
        ),
    ] = None,
    admission: Annotated[
        str, typer.Option(help="What is taken in, as in the settings: everything, or scan-guard.")
    ] = "everything",
    quota: Annotated[
        list[str] | None, typer.Option(help="TENANT=SHARE, such as acme=0.3, as in the settings. May be repeated.")
    ] = None,
    jobs: options.Jobs = None,
    json: options.Json = None,
    html: options.Html = None,
    plot: options.Plot = None,
    prefill_rate: Annotated[
        float | None,
        typer.Option(help="Tokens a second in prefill: replay with time.", rich_help_panel=_TIMED),
    ] = None,
    bytes_per_token: Annotated[int, typer.Option(help="KV bytes of a token.", rich_help_panel=_TIMED)] = 131072,
    decode_rate: Annotated[float, typer.Option(help="Tokens a second of each answer.", rich_help_panel=_TIMED)] = 50.0,
    concurrency: Annotated[int, typer.Option(help="Requests that run at a time.", rich_help_panel=_TIMED)] = 64,
    gpu_blocks: Annotated[int, typer.Option(help="Blocks of the prefix cache on the GPU.", rich_help_panel=_TIMED)] = 0,
    link: Annotated[
        str, typer.Option(help="Bytes a second between host memory and GPU, each way.", rich_help_panel=_TIMED)
    ] = "25GB",
    tier: Annotated[
        list[str] | None,
        typer.Option(
            help="A medium below: name:capacity:read:write:seconds, such as disk:2TiB:6GB:3GB:0.0001. May be repeated.",
            rich_help_panel=_TIMED,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="How much faster than in the trace requests arrive.", rich_help_panel=_TIMED)
    ] = 1.0,
) -> None:
    """Replay a trace through the pool and say how many blocks hit.

    A hit is a block of the leading run of a request's blocks that is resident and ready. What is missing is then stored.
    Requests come one after another; with --prefill-rate they come at their times, on a GPU with its own prefix cache, host
    memory and tiers, and the answer tells times to first token and what was moved.
    """
    from kvloft.cli._outputs import Outputs, draw_curves
    from kvloft.cli._progress import progress
    from kvloft.cli._results import print_ratios, print_timed
    from kvloft.sim.hints import Told, parse_session_end
    from kvloft.sim.intake import Intake, parse_quotas
    from kvloft.sim.latency import Machine
    from kvloft.sim.replay import Capacity, survey, watched
    from kvloft.sim.sweep import BOUNDS, check_policies, sweep, sweep_timed
    from kvloft.sim.tier import parse_rate, parse_tier

    if prefill_rate is None:
        _refuse_idle(ctx)
    outputs = Outputs(json, html, plot)
    outputs.check(trace)
    sizes = [Capacity.parse(size) for size in capacity.split(",")]
    names = [name.strip() for name in policy.split(",")]
    opened = options.open_given(trace, form, skip_bad, block_tokens, seed, spread_minutes, shared_prefix)
    if hints is not None:
        opened = Told(opened, parse_session_end(hints), seed)
    check_policies(names, BOUNDS if prefill_rate is None else ())
    intake = Intake(admission, parse_quotas(quota or ()))
    intake.check(opened)
    machine = None
    if prefill_rate is not None:
        machine = Machine(
            block_tokens=opened.block_tokens,
            block_bytes=opened.block_tokens * bytes_per_token,
            prefill_tokens_per_second=prefill_rate,
            decode_tokens_per_second=decode_rate,
            concurrency=concurrency,
            gpu_blocks=gpu_blocks,
            link_bytes_per_second=parse_rate("link", link),
            tiers=tuple(map(parse_tier, tier or ())),
        )
        machine.check()
    with progress("bytes read") as tell:
        counted = survey(watched(opened, tell))
    results: Sequence[ReplayResult | TimedResult]
    with progress("blocks") as tell:
        if machine:
            results = timed = sweep_timed(opened, machine, names, sizes, speed, jobs, tell, counted, intake)
        else:
            results = untimed = sweep(opened, names, sizes, jobs, tell, counted, intake)
    if machine:
        print_timed(outputs.console, opened, timed)
    else:
        print_ratios(outputs.console, opened, untimed)

    def page() -> "Page":
        from kvloft.report.replay import replay_page
        from kvloft.report.study import study

        real = [] if machine else [result for result in results if result.policy not in BOUNDS]
        middle = sorted(result.capacity_blocks for result in real)[len(real) // 2] if real else 0
        closer = study(opened, real[0].policy, middle, intake=intake) if real else None
        return replay_page(opened.name, counted, results, closer, opened.assumptions)

    outputs.write(results, lambda: draw_curves(results), page)


def _refuse_idle(ctx: typer.Context) -> None:
    """Refuse options that would change nothing without time."""
    from kvloft.errors import ConfigError

    timed = [option for option in ctx.command.params if getattr(option, "rich_help_panel", None) == _TIMED and option.name]
    given = [option.opts[0] for option in timed if str(ctx.get_parameter_source(str(option.name))).endswith("COMMANDLINE")]
    if given:
        raise ConfigError([f"{name}: says nothing without time; give --prefill-rate too, or leave it out" for name in given])
