"""Which blocks to write to disk: bytes written against hits gained, on a public trace.

python benchmarks/admission.py TRACE [--host 2048 8192] [--disk 8192 32768 131072] [--json FILE]

The trace is Mooncake JSONL. It is replayed request by request, in order, through the pool and cascade that serve, over a
tier in memory with an LRU bound; sizes are in blocks of the trace (512 tokens). Each request waits for its blocks, loads
the prefix that is there, and stores the rest in batches of 32, after each of which the cascade takes a step. Time stands
still, so no deadline plays a part: what is measured is what each choice writes and finds again. "Hits" are blocks loaded,
"gained" those beyond host memory alone.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvloft.pool import BlockPool, Lookup
from kvloft.request import Request
from kvloft.tiers.memory import MemoryTier
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import Admission, CascadeConfig

BATCH = 32


def read_chains(trace: Path) -> Iterator[list[int]]:
    with trace.open() as lines:
        for line in lines:
            yield json.loads(line)["hash_ids"]


def replay(chains: list[list[int]], host: int, disk: int, admission: Admission | None) -> dict[str, int]:
    """Blocks asked for, loaded, and written. `admission` None: no disk at all."""
    arena = bytearray(host)
    pool = BlockPool(host, "default")
    tier = MemoryTier(capacity_bytes=disk)
    config = CascadeConfig(admission=admission or Admission.EVERYTHING)
    cascade = Cascade(
        pool, lambda slot: memoryview(arena)[slot : slot + 1], [tier] if admission else [], config, lambda: 0.0
    )
    asked = loaded = refused = 0
    for number, chain in enumerate(chains):
        request = Request(number)
        asked += len(chain)
        hits = serve(cascade, request, chain)
        if hits:
            plan = pool.prepare_load(chain[:hits], request)
            cascade.loading(plan.keys, request)
            pool.complete_load(plan.keys, request)
            loaded += hits
        for start in range(hits, len(chain), BATCH):
            batch = chain[start : start + BATCH]
            stored = pool.prepare_store(batch, request)
            if stored is None:
                refused += len(batch)
            else:
                new = set(stored.keys)
                cascade.used([key for key in batch if key not in new])
                cascade.stored(pool.complete_store(stored.keys, request))
            cascade.step()
        cascade.finish(request)
        pool.finish(request)
        cascade.step()
    written = tier.stats().counters.get("stored", 0)
    return {"asked": asked, "loaded": loaded, "written": written, "refused": refused}


def serve(cascade: Cascade, request: Request, chain: list[int]) -> int:
    """Ask until there is an answer: how many leading blocks can be loaded."""
    while True:
        found = list(
            itertools.takewhile(lambda answer: answer is not Lookup.MISS, (cascade.lookup(key, request) for key in chain))
        )
        if Lookup.PENDING not in found:
            return len(found)
        cascade.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--host", type=int, nargs="+", default=[2048, 8192], help="blocks in host memory")
    parser.add_argument("--disk", type=int, nargs="+", default=[8192, 32768, 131072], help="blocks on disk")
    parser.add_argument("--requests", type=int, help="only so many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    chains = list(itertools.islice(read_chains(arguments.trace), arguments.requests))
    table = Table(
        "host", "disk", "admission", "hit rate", "gained", "written", "gained per written", title=arguments.trace.name
    )
    rows = []
    for host in arguments.host:
        alone = replay(chains, host, 0, None)
        table.add_row(str(host), "0", "-", f"{alone['loaded'] / alone['asked']:.1%}", "", "", "", end_section=True)
        for disk in arguments.disk:
            for admission in Admission:
                result = replay(chains, host, disk, admission)
                gained, written = result["loaded"] - alone["loaded"], result["written"]
                rows.append({"host": host, "disk": disk, "admission": admission.value, "alone": alone["loaded"], **result})
                rate = f"{result['loaded'] / result['asked']:.1%}"
                ratio = f"{gained / written:.3f}" if written else "-"
                last = admission is Admission.WRITE_BACK
                cells = (str(host), str(disk), admission.value, rate, str(gained), str(written), ratio)
                table.add_row(*cells, end_section=last)
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
