"""What the compiled tables cost alone: nanoseconds a key for each step of a request's life, in batches of a long request.

The counted minimum of `docs/performance.md`. Keys are 36 bytes, in tables of a million; no two batches share one, so nothing
of a batch is in the processor's cache. Each step runs alone, and the best run counts: what others do on the machine only
adds. `--short` takes tables of 100,000; `--json FILE` writes the figures.
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvloft._table import Index, Queues, ascending, distinct

Keys = Sequence[bytes]
HASHING = "each key once, hashing it"
"""Bytes remember their hash, so that is a step of its own."""


def anew(keys: Keys) -> list[bytes]:
    """The same keys as other objects, whose hashes nobody has asked for."""
    return [bytes(bytearray(key)) for key in keys]


def steps(blocks: int, batch: int) -> dict[str, tuple[Callable[[Keys], object], Callable[[Keys], object]]]:
    """By name, what prepares a batch and what is measured on it."""
    index, queues, strangers = Index(blocks), Queues(blocks, 2), Index(blocks)
    everything = [number.to_bytes(32, "little") + bytes(4) for number in range(blocks)]
    for start in range(0, blocks, batch):
        part = everything[start : start + batch]
        index.take(part)
        index.land(part)
        queues.add(part)
        strangers.take([key[:32] + b"else" for key in part])
    look = index.answers(0, 1, 2)
    places: dict[bytes, int] = {}

    def nothing(keys: Keys) -> None:
        """Nothing to prepare."""

    def place(keys: Keys) -> None:
        places.clear()
        places.update(zip(anew(keys), range(len(keys)), strict=True))

    return {
        "lookup, key by key": (nothing, lambda keys: [look(key) for key in keys]),
        HASHING: (nothing, distinct),
        "each key once": (nothing, distinct),
        "pin": (nothing, index.pin),
        "unpin": (index.pin, index.unpin),
        "find residents": (nothing, index.present),
        "find them again": (index.present, index.present),
        "find that none is there": (nothing, strangers.absent),
        "move in a queue": (nothing, queues.touch),
        "give up slots": (nothing, index.drop),
        "take free slots": (index_dropper(index), index.take),
        "leave a queue": (nothing, queues.remove),
        "enter a queue": (queue_leaver(queues), queues.add),
        "make a set": (nothing, set),
        "find that positions ascend": (place, lambda _: ascending(map(places.get, places))),
    }


def index_dropper(index: Index) -> Callable[[Keys], object]:
    return lambda keys: index.drop(index.present(keys))


def queue_leaver(queues: Queues) -> Callable[[Keys], object]:
    return lambda keys: queues.remove(queues.present(keys))


def measure(blocks: int, batch: int, rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    everything = [number.to_bytes(32, "little") + bytes(4) for number in range(blocks)]
    for name, (prepare, run) in steps(blocks, batch).items():
        times = []
        for start in islice(range(0, blocks - batch + 1, batch), rounds):
            keys = everything[start : start + batch]
            prepare(keys)
            keys = anew(keys)
            if name != HASHING:
                deque(map(hash, keys), 0)
            began = time.perf_counter()
            run(keys)
            times.append(time.perf_counter() - began)
        rows.append({"step": name, "ns": 1e9 * min(times) / batch})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="100,000 blocks instead of 1,000,000")
    parser.add_argument("--batch", type=int, default=8192, help="keys in a call")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    blocks = 100_000 if args.short else 1_000_000
    rows = measure(blocks, args.batch, 60)
    table = Table(title=f"{blocks:,} blocks, {args.batch:,} keys a call", title_justify="left")
    table.add_column("step")
    table.add_column("ns a key", justify="right")
    for row in rows:
        table.add_row(str(row["step"]), f"{row['ns']:.0f}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"blocks": blocks, "batch": args.batch, "steps": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
