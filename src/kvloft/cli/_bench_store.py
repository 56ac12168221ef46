"""What a shared store gives: latency, bandwidth, and from what prompt on loading beats computing."""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from kvloft.errors import ConfigError, TierError

if TYPE_CHECKING:
    from rich.console import Console

    from kvloft.tiers import Buffer, Tier

_REPEATS = 15
_MANY = 128
_PATIENCE = 30.0
_BYTES_PER_TOKEN = 128 << 10
"""Taken if no model is given: 32 layers of 8 KV heads of 128 16-bit values, as in models of 8 billion parameters."""


def read_settings(given: Sequence[str]) -> dict[str, Any]:
    """Settings of a tier from `NAME=VALUE` and `NAME.PART=VALUE`; values in JSON, or text.

    Raises:
        ConfigError: one has no name or no value.
    """
    settings: dict[str, Any] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not name or not sign:
            raise ConfigError(
                f"--set {name}: give NAME=VALUE, such as password=env:REDIS_PASSWORD or options.region=eu-west-1"
            )
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        outer, dot, inner = name.partition(".")
        if dot:
            settings.setdefault(outer, {})[inner] = value
        else:
            settings[name] = value
    return settings


def measure_store(
    url: str,
    given: Mapping[str, Any],
    sizes: Sequence[int],
    depths: Sequence[int],
    amount: int,
    tell: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """A row for each block size and depth: rates in bytes a second, latencies in seconds. What was written is removed again.

    Args:
        url: of the store.
        given: further settings of its tier.
        sizes: of blocks, in bytes.
        depths: blocks in flight.
        amount: bytes written and read for each row.
        tell: hears of progress: rows done, rows in all.

    Raises:
        ConfigError: the address or a setting is wrong.
        TierError: the store cannot be reached, or stops answering.
    """
    from kvloft.keys import Namespace
    from kvloft.tiers import Status
    from kvloft.tiers.bandwidth import load_all, make_buffers, store_all
    from kvloft.tiers.settings import read_tier
    from kvloft.tiers.stores import type_of

    plan = read_tier({"type": type_of(url), "url": url, **given}, "store")
    namespace = Namespace(model="kvloft bench", extra={"run": secrets.token_hex(8)})
    rows: list[dict[str, Any]] = []
    for size in sizes:
        latencies: dict[str, float] | None = None
        for depth in depths:
            tell(len(rows), len(sizes) * len(depths))
            buffers = make_buffers(size, depth)
            tier = plan.open(size, namespace, memoryview(buffers[0].obj))
            keys = [f"{size} {depth} {index}" for index in range(max(amount // size, depth))]
            try:
                latencies = latencies or _latencies(tier, size, buffers[0], url)
                stored, loaded = store_all(tier, keys, buffers), load_all(tier, keys, buffers)
                not_ok = sum(run.statuses.total() - run.statuses[Status.OK] for run in (stored, loaded))
                rates = {"store": stored.rate, "load": loaded.rate}
                rows.append({"block_bytes": size, "depth": depth, **rates, **latencies, "not_ok": not_ok})
            finally:
                tier.remove([*keys, *_latency_keys(size)])
                tier.close()
    tell(len(rows), len(rows))
    return rows


def add_break_even(rows: Sequence[dict[str, Any]], bytes_per_token: float | None, prefill: float | None) -> float:
    """Add what each row means for a model: tokens a second that it loads, and, if `prefill` is given, the length of the
    shortest prompt that is loaded sooner than computed (None: none is). Returns the bytes of a token."""
    bytes_per_token = bytes_per_token or _BYTES_PER_TOKEN
    for row in rows:
        row["load_tokens_per_second"] = row["load"] / bytes_per_token
        if prefill:
            gain = 1 / prefill - 1 / row["load_tokens_per_second"]
            # The store is asked, and the first block comes, before anything is gained.
            row["break_even_tokens"] = (row["lookup_seconds"] + row["load_seconds"]) / gain if gain > 0 else None
    return bytes_per_token


def print_store(console: "Console", result: Mapping[str, Any]) -> None:
    """One table, and what it comes to in words."""
    from rich.table import Table

    from kvloft.config import format_size

    per_token, prefill = result["bytes_per_token"], result["prefill_tokens_per_second"]
    table = Table(title=result["where"], title_justify="left")
    names = ["block", "in flight", "store", "load", "lookup", f"lookup of {_MANY}", "load of one", "pays below"]
    for name in [*names, *(["pays from"] if prefill else [])]:
        table.add_column(name, justify="right")
    for row in result["rows"]:
        rates = [f"{row[name] / 1e9:.2f} GB/s" for name in ("store", "load")]
        times = [f"{row[name] * 1e3:.2f} ms" for name in ("lookup_seconds", "lookup_many_seconds", "load_seconds")]
        pays = [f"{row['load_tokens_per_second']:,.0f} tokens/s"]
        if prefill:
            length = row["break_even_tokens"]
            pays.append("never" if length is None else f"{max(1, round(length)):,} tokens")
        table.add_row(format_size(row["block_bytes"]), str(row["depth"]), *rates, *times, *pays)
    console.print(table)
    assumed = "" if result["model"] else ", as for models of 8 billion parameters; give --model"
    console.print(f"A token is {format_size(round(per_token))}{assumed}. Loading pays where prefill is slower than that.")
    if not prefill:
        console.print("Give --prefill to see from what prompt on.")
    if failed := sum(row["not_ok"] for row in result["rows"]):
        console.print(f"[yellow]{failed} blocks were not stored or loaded: is the store full, or too slow?[/]")


def _latency_keys(size: int) -> list[str]:
    return [f"{size} one {repeat}" for repeat in range(_REPEATS)]


def _latencies(tier: "Tier", size: int, buffer: "Buffer", url: str) -> dict[str, float]:
    """Medians, in seconds, with nothing else under way."""
    keys = _latency_keys(size)
    _job(tier, lambda number: tier.submit_store(number, keys[:1], [buffer]), url)
    for key in keys[1:]:
        _job(tier, lambda number, key=key: tier.submit_store(number, [key], [buffer]), url)  # type: ignore[misc]
    loads = [_job(tier, lambda number, key=key: tier.submit_load(number, [key], [buffer]), url) for key in keys]  # type: ignore[misc]
    ones = [_lookup(tier, [f"{size} none {repeat}"]) for repeat in range(_REPEATS)]
    many = [_lookup(tier, [f"{size} none {repeat} {index}" for index in range(_MANY)]) for repeat in range(_REPEATS)]
    return {"lookup_seconds": median(ones), "lookup_many_seconds": median(many), "load_seconds": median(loads)}


def _lookup(tier: "Tier", keys: Sequence[str]) -> float:
    from kvloft.tiers import Presence

    start = time.perf_counter()
    while Presence.UNKNOWN in tier.lookup(keys):
        time.sleep(0.00005)
    return time.perf_counter() - start


def _job(tier: "Tier", submit: Callable[[int], None], url: str) -> float:
    from kvloft.tiers import Status

    start = time.perf_counter()
    submit(0)
    while not (answers := tier.poll()):
        if time.perf_counter() - start > _PATIENCE:
            raise TierError(f"{url}: no answer in {_PATIENCE:.0f} s")
        time.sleep(0.00005)
    seconds = time.perf_counter() - start
    if answers[0].statuses[0] is not Status.OK:
        raise TierError(
            f"{url}: a block was {answers[0].statuses[0].value}: {answers[0].error or 'there is no room for it'}"
        )
    return seconds
