"""`kvloft bench disk DIR` and `kvloft bench store URL`: how fast a medium is for blocks, and what that means for a model."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvloft.tiers import Tier


class Medium(StrEnum):
    """What can be measured."""

    disk = "disk"
    store = "store"


def bench(
    medium: Annotated[Medium, typer.Argument(help="What to measure.")],
    where: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL", help="A directory on the disk, or the store's address. What is written is removed again."
        ),
    ],
    sizes: Annotated[str, typer.Option(help="Block sizes, separated by commas.")] = "256KiB,2MiB",
    depths: Annotated[str, typer.Option(help="Blocks in flight, separated by commas.")] = "1,8,32",
    amount: Annotated[str, typer.Option(help="What is written and read for each size and depth.")] = "256MiB",
    model: Annotated[
        str | None, typer.Option(help="A model's config.json, or its folder: rates are then told in tokens too.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="The model's KV cache type, as in vLLM.")] = "auto",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    prefill: Annotated[
        float | None, typer.Option(help="Tokens a second that the engine computes: is loading faster than that?")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of the store's tier, NAME=VALUE, such as password=env:REDIS_PASSWORD. Repeatable."
        ),
    ] = None,
    json: Annotated[bool, typer.Option(help="Print JSON.")] = False,
) -> None:
    """Measure a medium with the tier that would use it: frames, checksums and index included.

    Read rates are of blocks just written. On a disk that takes O_DIRECT neither they nor write rates touch the page cache.
    """
    from json import dumps

    from rich.console import Console

    from kvloft.cli._progress import progress
    from kvloft.errors import ConfigError
    from kvloft.geometry import KVGeometry

    _check(medium, model, kv_dtype, tp, prefill, setting)
    block_sizes, flights = _sizes(sizes, "--sizes"), _counts(depths)
    (total, *more) = _sizes(amount, "--amount")
    if more:
        raise ConfigError(f"--amount: {amount!r} are several sizes; give one, such as 256MiB")
    bytes_per_token = KVGeometry.from_config(model, kv_dtype, tp).bytes_per_token() if model else None
    if medium is Medium.store:
        from kvloft.cli._bench_store import add_break_even, measure_store, print_store, read_settings

        with progress("measurements") as tell:
            rows = measure_store(where, read_settings(setting or []), block_sizes, flights, total, tell)
        result = {
            "medium": medium.value,
            "where": where,
            "model": model,
            "bytes_per_token": add_break_even(rows, bytes_per_token, prefill),
            "prefill_tokens_per_second": prefill,
            "rows": rows,
        }
        if json:
            typer.echo(dumps(result, indent=2))
        else:
            print_store(Console(highlight=False), result)
        return
    cases = [(size, depth) for size in block_sizes for depth in flights]
    rows = []
    with progress("measurements") as tell:
        for done, (size, depth) in enumerate(cases):
            tell(done, len(cases))
            rows.append(_measure_disk(where, size, depth, total))
        tell(len(cases), len(cases))
    if bytes_per_token:
        for row in rows:
            row["load_tokens_per_second"] = row["load"] / bytes_per_token
    result = {
        "medium": medium.value,
        "where": where,
        "checksum": _checksum_rate(max(block_sizes)),
        "bytes_per_token": bytes_per_token,
        "prefill_tokens_per_second": prefill,
        "rows": rows,
    }
    if json:
        typer.echo(dumps(result, indent=2))
    else:
        _print(Console(highlight=False), result)


def _check(
    medium: Medium, model: str | None, kv_dtype: str, tp: int, prefill: float | None, setting: list[str] | None
) -> None:
    """Refuse options that make no sense or would change nothing."""
    from kvloft.errors import ConfigError

    problems = []
    if prefill is not None and not prefill > 0:
        problems.append(f"--prefill: {prefill:g} is not greater than 0; give tokens a second, such as 12000")
    if prefill is not None and medium is Medium.disk and not model:
        problems.append("--prefill: how fast a disk gives tokens depends on the model; give --model too")
    if setting and medium is Medium.disk:
        problems.append("--set: a disk takes no settings; leave it out")
    if not model:
        given = [name for name, value, usual in (("--kv-dtype", kv_dtype, "auto"), ("--tp", tp, 1)) if value != usual]
        problems += [f"{name}: says nothing without a model; give --model too" for name in given]
    if problems:
        raise ConfigError(problems)


def _sizes(text: str, option: str) -> list[int]:
    from kvloft.config import parse_size
    from kvloft.errors import ConfigError

    try:
        return [parse_size(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _counts(text: str) -> list[int]:
    from kvloft.errors import ConfigError

    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(f"--depths: {text!r} are not numbers of blocks; give integers of at least 1, such as 1,8,32")
    return counts


def _measure_disk(directory: str, size: int, depth: int, amount: int) -> dict[str, Any]:
    """Store, load and store over again; in a directory of its own inside `directory`."""
    import tempfile

    from kvloft.errors import ConfigError
    from kvloft.keys import Namespace
    from kvloft.tiers.disk import DiskTier

    blocks = max(amount // size, depth)
    try:
        folder = tempfile.TemporaryDirectory(prefix="kvloft-bench-", dir=directory)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}; give a directory that can be written") from error
    with folder as place:
        # Room for all blocks and a few segments more; the second round of stores then has to evict most of the first.
        capacity = int(1.1 * blocks * (size + 8192)) + (8 << 20)
        tier = DiskTier(place, capacity, size, Namespace(model="kvloft bench"))
        try:
            return {"direct": tier.direct, **_measure(tier, size, depth, blocks)}
        finally:
            tier.close()


def _measure(tier: "Tier", size: int, depth: int, blocks: int) -> dict[str, Any]:
    """Rates of any tier, in bytes a second."""
    from kvloft.tiers import Status
    from kvloft.tiers.bandwidth import load_all, make_buffers, store_all

    buffers = make_buffers(size, depth)
    first, second = ([f"{name} {n}" for n in range(blocks)] for name in ("first", "second"))
    stored, loaded = store_all(tier, first, buffers), load_all(tier, first, buffers)
    again = store_all(tier, second, buffers)
    return {
        "block_bytes": size,
        "depth": depth,
        "store": stored.rate,
        "load": loaded.rate,
        "overwrite": again.rate,
        "not_ok": sum(run.statuses.total() - run.statuses[Status.OK] for run in (stored, loaded, again)),
    }


def _checksum_rate(size: int) -> float:
    """Bytes a second that one core checks."""
    import time

    from kvloft.tiers.bandwidth import make_buffers
    from kvloft.tiers.frame import seal

    buffers = make_buffers(size, max(1, (64 << 20) // size))
    start = time.perf_counter()
    for buffer in buffers:
        seal(bytes(32), bytes(32), buffer)
    return len(buffers) * size / (time.perf_counter() - start)


def _print(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    from kvloft.config import format_size

    per_token, prefill = result["bytes_per_token"], result["prefill_tokens_per_second"]
    table = Table(title=f"{result['where']}", title_justify="left")
    for name in ("block", "in flight", "store", "load", "overwrite", "checksum", *(["load, tokens/s"] if per_token else [])):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        rates = [f"{row[name] / 1e9:.2f} GB/s" for name in ("store", "load", "overwrite")]
        cost = f"{row['load'] / result['checksum']:.0%} of a core"
        tokens = [f"{row['load_tokens_per_second']:,.0f}"] if per_token else []
        table.add_row(format_size(row["block_bytes"]), str(row["depth"]), *rates, cost, *tokens)
    console.print(table)
    direct = all(row["direct"] for row in result["rows"] if "direct" in row)
    console.print("O_DIRECT" if direct else "Through the page cache: the file system takes no O_DIRECT.")
    failed = sum(row["not_ok"] for row in result["rows"])
    if failed:
        console.print(f"[yellow]{failed} blocks were not stored or loaded: is the file system nearly full?[/]")
    if per_token:
        best = max(row["load_tokens_per_second"] for row in result["rows"])
        console.print(f"The model makes {format_size(int(per_token))} a token: {best:,.0f} tokens/s at best.")
        if prefill:
            verdict = "faster" if best > prefill else "slower"
            console.print(
                f"Loading is {best / prefill:.1f} times the {prefill:,.0f} tokens/s of computing: [bold]{verdict}[/]."
            )
