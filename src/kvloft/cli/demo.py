"""`kvloft demo`: conversations on a real vLLM engine, without and with kvloft."""

import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvloft.cli._outputs import STDOUT, write_json
from kvloft.config import format_size, parse_size
from kvloft.errors import ConfigError, KvloftError, MissingExtra
from kvloft.files import check_outputs
from kvloft.policies import DEFAULT, is_policy, policy_names
from kvloft.telemetry import Stats
from kvloft.testing.models import VOCABULARY, TinyModel
from kvloft.vllm.engine import BLOCK_TOKENS, generate, manager_of, read_metric, run_engine, set_environment

CONVERSATIONS = 5
TURNS = 5
LATER_TURNS = 1
"""After the engine was restarted, when all there is of the earlier ones is on disk."""
SYSTEM_TOKENS = 128
"""Begins every conversation, the same in all of them."""
DOCUMENT_TOKENS = 832
"""What a conversation is about: part of its first turn."""
QUESTION_TOKENS = 64
ANSWER_TOKENS = 16
MODEL = TinyModel(layers=4, hidden=256, max_tokens=2048)


@dataclass
class Side:
    """One turn of all conversations on one engine."""

    prompt_tokens: int = 0
    computed_tokens: int = 0
    gpu_cached_tokens: int = 0
    loaded_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    @property
    def first_token_ms(self) -> float:
        """Mean time to the first token."""
        return 1000 * sum(self.first_token_seconds) / max(len(self.first_token_seconds), 1)


def demo(
    policy: Annotated[str, typer.Option(help="Eviction policy.")] = "default",
    capacity: Annotated[str, typer.Option(help='Host memory for KV blocks, such as "16MiB".')] = "24MiB",
    as_json: Annotated[
        Path | None,
        typer.Option("--json", help="Write the result to this file as JSON; without a name, print it."),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Let vLLM's own log through.")] = False,
) -> None:
    """Serve conversations with a real vLLM on the CPU, without and with kvloft, and compare.

    The model is tiny, made on the spot, and its weights are random; the engine is not. Its own KV cache is so small that
    a conversation has left it when its next turn comes: without kvloft the whole prompt is computed again, with kvloft it
    comes back from host memory. Then the engine is restarted, and the conversations go on from disk. Exit code 0: both
    gave the same tokens; 1: they did not.
    """
    check_outputs(None if as_json == STDOUT else as_json)
    settings: dict[str, Any] = {"cpu_bytes_to_use": _capacity(capacity), "eviction_policy": _policy(policy)}
    try:
        set_environment(verbose)
    except MissingExtra as error:
        raise MissingExtra("vllm", "kvloft demo") from error
    with _quiet(verbose, sys.stderr if as_json == STDOUT else sys.stdout) as console, tempfile.TemporaryDirectory() as disk:
        settings["tiers"] = [{"type": "disk", "path": disk, "capacity": "1GiB"}]
        without, with_kvloft, stats = _compare(console, settings)
    identical = [side.answers for side in without] == [side.answers for side in with_kvloft]
    if as_json:
        write_json(as_json, json.dumps(_report(settings, without, with_kvloft, stats, identical), indent=2).encode())
    if as_json != STDOUT:
        Console(highlight=False).print(_verdict(settings, without, with_kvloft, stats, identical))
    raise typer.Exit(0 if identical else 1)


def _capacity(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--capacity: {error}") from error


def _policy(name: str) -> str:
    if not is_policy(name):
        raise ConfigError(f"--policy: {name!r} is unknown; choose one of: {', '.join(policy_names())}")
    return DEFAULT if name == "default" else name


# Running.


def _compare(console: Console, settings: Mapping[str, Any]) -> tuple[list[Side], list[Side], Stats]:
    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = bar.add_task("making the model", total=2 * CONVERSATIONS * (TURNS + LATER_TURNS))
    sides: list[list[Side]] = [[], []]
    with Live(console=console, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False) as live:

        def show() -> None:
            live.update(Group(_table(*sides), bar))

        show()
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvloft" / "models"
        model = MODEL.make(cache)
        stats: Stats | None = None
        # Without kvloft a restart changes nothing: the engine's own cache is always empty when a conversation comes back.
        acts = (("without kvloft", None, [TURNS + LATER_TURNS]), ("with kvloft", settings, [TURNS, LATER_TURNS]))
        for side, (label, chosen, parts) in zip(sides, acts, strict=True):
            conversations = Conversations()
            for turns in parts:
                bar.update(task, description=f"starting vLLM {label}")
                blocks = _longest() // BLOCK_TOKENS + 2
                with run_engine(model, blocks, chosen, max_num_batched_tokens=2048, max_num_seqs=2) as llm:
                    for conversation in conversations.take_turns(llm, turns, side):
                        said = f"{label}: turn {len(side)}, conversation {conversation + 1}"
                        bar.update(task, description=said, advance=1)
                        show()
                    if chosen is not None and stats is None:
                        stats = manager_of(llm).pool.stats()
                gc.collect()
        bar.update(task, visible=False)
    assert stats is not None
    return sides[0], sides[1], stats


def _longest() -> int:
    return SYSTEM_TOKENS + DOCUMENT_TOKENS + (TURNS + LATER_TURNS) * (QUESTION_TOKENS + ANSWER_TOKENS)


class Conversations:
    """The same questions each time, and the answers so far."""

    def __init__(self) -> None:
        self._dice = random.Random(0)
        system = _text(self._dice, SYSTEM_TOKENS)
        self._histories = [[*system, *_text(self._dice, DOCUMENT_TOKENS)] for _ in range(CONVERSATIONS)]

    def take_turns(self, llm: Any, turns: int, sides: list[Side]) -> Iterator[int]:
        """Every conversation has its turn, then every one its next."""
        # The first step of an engine is slow, whoever asks.
        generate(llm, [_text(random.Random(1), QUESTION_TOKENS)], ANSWER_TOKENS)
        for _ in range(turns):
            side = Side()
            sides.append(side)
            for conversation, history in enumerate(self._histories):
                history += _text(self._dice, QUESTION_TOKENS)
                history += self._ask(llm, history, side)
                yield conversation

    def _ask(self, llm: Any, prompt: list[int], side: Side) -> list[int]:
        loaded = read_metric(llm, "vllm:external_prefix_cache_hits")
        output = generate(llm, [prompt], ANSWER_TOKENS)[0]
        loaded = int(read_metric(llm, "vllm:external_prefix_cache_hits") - loaded)
        answer = list(output.outputs[0].token_ids)
        side.prompt_tokens += len(output.prompt_token_ids)
        side.computed_tokens += len(output.prompt_token_ids) - output.num_cached_tokens
        side.loaded_tokens += loaded
        side.gpu_cached_tokens += output.num_cached_tokens - loaded
        side.first_token_seconds.append(output.metrics.first_token_latency)
        side.answers.append(answer)
        return answer


def _text(dice: random.Random, tokens: int) -> list[int]:
    return [dice.randrange(VOCABULARY - 256, VOCABULARY) for _ in range(tokens)]


@contextmanager
def _quiet(verbose: bool, stream: Any) -> Iterator[Console]:
    """Keep what vLLM and torch print, also from C++, away from the screen; if all goes wrong, show the end of it."""
    if verbose:
        yield Console(highlight=False, file=stream)
        return
    stream.flush()
    with os.fdopen(os.dup(stream.fileno()), "w") as screen, tempfile.TemporaryFile("w+") as log:
        saved = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in saved:
            os.dup2(log.fileno(), number)
        try:
            with redirect_stdout(log), redirect_stderr(log):
                yield Console(highlight=False, file=screen)
        except KvloftError:
            raise
        except Exception as error:
            log.seek(0)
            last = "".join(log.readlines()[-20:])
            raise KvloftError(f"vLLM failed: {error}\n{last}\nRun again with --verbose for all of it.") from error
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)


# Showing.


def _table(without: list[Side], with_kvloft: list[Side]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{CONVERSATIONS} conversations: their tokens together, mean time to first token (TTFT)",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    for header in ("turn", "prompt", "computed\nwithout", "computed\nwith", "loaded", "engine\ncache"):
        table.add_column(header, justify="right")
    for header in ("TTFT\nwithout", "TTFT\nwith", "same\ntokens"):
        table.add_column(header, justify="right")
    for turn, before in enumerate(without):
        after = with_kvloft[turn] if turn < len(with_kvloft) else None
        if turn == TURNS:
            table.add_section()
        row = [f"{turn + 1}" + (" *" if turn >= TURNS else ""), f"{before.prompt_tokens:,}", f"{before.computed_tokens:,}"]
        row += (
            [f"{n:,}" for n in (after.computed_tokens, after.loaded_tokens, after.gpu_cached_tokens)] if after else [""] * 3
        )
        row += [f"{before.first_token_ms:.0f} ms", f"{after.first_token_ms:.0f} ms" if after else "", _same(before, after)]
        table.add_row(*row)
    return table


def _same(before: Side, after: Side | None) -> str:
    if after is None or len(after.answers) < len(before.answers):
        return ""
    return "[green]yes[/]" if before.answers == after.answers else "[bold red]NO[/]"


def _verdict(
    settings: Mapping[str, Any], without: list[Side], with_kvloft: list[Side], stats: Stats, identical: bool
) -> Group:
    lists = ", ".join(f"{name} {size}" for name, size in stats.lists.items())
    evicted = ", ".join(f"{name} {count}" for name, count in stats.evicted.items())
    block = settings["cpu_bytes_to_use"] / stats.capacity
    refused = sum(stats.counters.refused.values())
    computed = [sum(side.computed_tokens for side in sides) for sides in (without, with_kvloft)]
    later = sum(side.loaded_tokens for side in with_kvloft[TURNS:])
    lines = [
        "",
        f"host memory   {format_size(settings['cpu_bytes_to_use'])}, {stats.capacity} blocks of {format_size(int(block))}",
        f"pool          {stats.ready} readable, {stats.free} free, {stats.writing} being written",
        f"policy        {settings['eviction_policy']}: {lists}",
        f"evictions     {sum(stats.evicted.values())}"
        + (f" ({evicted})" if evicted else "")
        + f"; stores refused {refused}",
        f"computed      {computed[0]:,} tokens without kvloft, {computed[1]:,} with",
        f"restart *     engine stopped and started: {later:,} tokens came from disk",
        "tokens        " + ("[green]identical[/]" if identical else "[bold red]DIFFERENT with kvloft[/]"),
    ]
    return Group(*lines)


def _report(
    settings: Mapping[str, Any], without: list[Side], with_kvloft: list[Side], stats: Stats, identical: bool
) -> dict[str, Any]:
    return {
        "policy": settings["eviction_policy"],
        "capacity_bytes": settings["cpu_bytes_to_use"],
        "conversations": CONVERSATIONS,
        "identical": identical,
        "turns": [
            {
                "turn": turn + 1,
                "restarted": turn >= TURNS,
                "identical": before.answers == after.answers,
                "without": _numbers(before),
                "with": _numbers(after),
            }
            for turn, (before, after) in enumerate(zip(without, with_kvloft, strict=True))
        ],
        "evicted": stats.evicted,
        "pool": asdict(stats),
    }


def _numbers(side: Side) -> dict[str, Any]:
    numbers = asdict(side)
    numbers["first_token_ms"] = side.first_token_ms
    return numbers
