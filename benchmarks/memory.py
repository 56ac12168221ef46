"""Copies between an engine's KV tensors and the arena, beside one plain memcpy of as many bytes.

Both run in turns in one thread, and only the time it runs is counted, so that a busy machine slows both alike; what counts
is the ratio. 1.0 would be a copy that
knows nothing of blocks and layers. `--short` takes seconds; `--json FILE` writes the figures.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from kvloft.transfer import Arena, Mover, Shape, copy_pages

LAYERS = 32
CASES = {
    "neighbours, 128 KiB pages": (128 << 10, False),
    "scattered, 128 KiB pages": (128 << 10, True),
    "neighbours, 16 KiB pages": (16 << 10, False),
    "scattered, 16 KiB pages": (16 << 10, True),
}


def compare(ours: Callable[[], object], plain: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median over rounds of plain / ours. Seconds are those that this thread ran."""
    pairs = []
    for _ in range(rounds):
        times = [time.thread_time()]
        for run in (ours, plain):
            run()
            times.append(time.thread_time())
        pairs.append((times[1] - times[0], times[2] - times[1]))
    medians = [statistics.median(column) for column in zip(*pairs[1:], strict=True)]
    return medians[0], medians[1], statistics.median(plain / ours for ours, plain in pairs[1:])


def aligned(size: int) -> NDArray[np.uint8]:
    """Written memory that begins at a cache line, as PyTorch's does and numpy's need not."""
    room = np.ones(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def copies(name: str, page: int, scattered: bool, total: int, rounds: int) -> Iterator[dict[str, object]]:
    """Store and load of all blocks at once, against copying the same two areas in one go."""
    blocks = total // (LAYERS * page)
    engine = aligned(total)
    arena = Arena(None, blocks, LAYERS * page)
    arena.bytes[:] = 0
    dice = np.random.default_rng(0)
    slots, numbers = (dice.permutation(blocks) if scattered else np.arange(blocks) for _ in range(2))
    host, inside = slots * arena.slot_bytes, numbers * page
    directions = {
        "store": (arena.bytes, host, engine, inside, Shape(LAYERS, page, blocks * page, page)),
        "load": (engine, inside, arena.bytes, host, Shape(LAYERS, page, page, blocks * page)),
    }
    for direction, (target, target_offsets, source, source_offsets, shape) in directions.items():
        ours = partial(copy_pages, target, target_offsets, source, source_offsets, shape)
        mine, plain, ratio = compare(ours, partial(np.copyto, target, source), rounds)
        yield {
            "case": name,
            "direction": direction,
            "gb_per_s": total / mine / 1e9,
            "memcpy_gb_per_s": total / plain / 1e9,
            "ratio": ratio,
        }
    del target, source, ours, directions
    arena.close()


def answer_seconds(rounds: int) -> float:
    """Median seconds from submitting an urgent job of one small copy to its answer."""
    mover, target, source = Mover(2), np.zeros(1 << 16, np.uint8), np.ones(1 << 16, np.uint8)

    def one() -> None:
        mover.submit(0, [lambda: np.copyto(target, source) or source.nbytes], urgent=True)
        while not mover.poll(patience=0.001):
            pass

    one()
    times = [time.perf_counter()]
    for _ in range(rounds):
        one()
        times.append(time.perf_counter())
    seconds = statistics.median(np.diff(times).tolist())
    mover.close()
    return seconds


def start_seconds(total: int) -> tuple[float, float]:
    """Seconds until an arena can be used, and until all of it is backed by memory."""
    start = time.perf_counter()
    arena = Arena(None, total >> 20, 1 << 20)
    usable = time.perf_counter() - start
    while arena.reserved < arena.nbytes:
        time.sleep(0.001)
    backed = time.perf_counter() - start
    arena.close()
    return usable, backed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="64 MiB instead of 512 MiB, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    total, rounds = (64 << 20, 9) if args.short else (512 << 20, 21)

    rows = [row for name, (page, scattered) in CASES.items() for row in copies(name, page, scattered, total, rounds)]
    console = Console()
    table = Table(title=f"{total >> 20} MiB, {LAYERS} layers, one thread", title_justify="left")
    for header in ("copy", "direction", "GB/s", "memcpy GB/s", "ratio"):
        table.add_column(header, justify="left" if header in ("copy", "direction") else "right")
    for row in rows:
        figures = (f"{row['gb_per_s']:.1f}", f"{row['memcpy_gb_per_s']:.1f}", f"{row['ratio']:.2f}")
        table.add_row(str(row["case"]), str(row["direction"]), *figures)
    console.print(table)
    answer = answer_seconds(20 * rounds)
    usable, backed = start_seconds(4 * total)
    console.print(f"a job of 64 KiB is answered after {1e6 * answer:.0f} us")
    console.print(
        f"an arena of {4 * total >> 20} MiB is usable after {1e3 * usable:.1f} ms, backed after {1e3 * backed:.0f} ms"
    )
    if args.json:
        figures = {
            "copies": rows,
            "answer_seconds": answer,
            "usable_seconds": usable,
            "backed_seconds": backed,
            "bytes": total,
        }
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
