"""Which blocks to write to disk: bytes written against hits gained.

python benchmarks/admission.py [TRACE] [--host 2048 8192] [--disk 8192 32768 131072] [--json FILE] [--short]

The trace is of any format that kvloft reads, generated if none is given. It is replayed request by request, in order,
through the pool and cascade that serve, over a tier in memory with an LRU bound; sizes are in blocks of the trace. Each
request waits for its blocks, loads the prefix that is there, and stores the rest in batches of 32, after each of which
the cascade takes a step. Time stands still, so no deadline plays a part: what is measured is what each choice writes
and finds again. "Hits" are blocks loaded, "gained" those beyond host memory alone. `--short` takes the first 300
requests and one size of each.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key, Request
from kvloft.tiers.memory import MemoryTier
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, synthesize
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import Admission, CascadeConfig

BATCH = 32


def replay(chains: list[Sequence[Key]], host: int, disk: int, admission: Admission | None) -> dict[str, int]:
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


def serve(cascade: Cascade, request: Request, chain: Sequence[Key]) -> int:
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
    parser.add_argument("trace", nargs="?", type=Path, help="generated if none is given")
    parser.add_argument("--host", type=int, nargs="+", help="blocks in host memory")
    parser.add_argument("--disk", type=int, nargs="+", help="blocks on disk")
    parser.add_argument("--requests", type=int, help="only so many")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--short", action="store_true", help="300 requests, and one size of each, unless given")
    arguments = parser.parse_args()
    hosts = arguments.host or ([512] if arguments.short else [2048, 8192])
    disks = arguments.disk or ([4096] if arguments.short else [8192, 32768, 131072])
    count = arguments.requests or (300 if arguments.short else None)
    trace = open_trace(arguments.trace) if arguments.trace else synthesize(Workload(block_tokens=512))
    chains = [asked.keys for asked in itertools.islice(trace, count)]
    title = arguments.trace.name if arguments.trace else "generated"
    table = Table("host", "disk", "admission", "hit rate", "gained", "written", "gained per written", title=title)
    rows = []
    for host in hosts:
        alone = replay(chains, host, 0, None)
        table.add_row(str(host), "0", "-", f"{alone['loaded'] / alone['asked']:.1%}", "", "", "", end_section=True)
        for disk in disks:
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
