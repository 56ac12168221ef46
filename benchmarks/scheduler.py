"""What the offload manager costs vLLM's scheduler thread: kvloft's beside the stock one, in one process and run.

    python benchmarks/scheduler.py [--short] [--json FILE]

Writes the tables of docs/performance.md (between its markers) and docs/performance.svg if it measures everything; that takes
about ten minutes on an idle machine and 3 GiB. With --short, or where less is asked for, it prints them and writes nothing.

One measurement is 400 requests drawn from 200 different ones. Each lives as vLLM's scheduler lets it live: new, looked up
key by key until the first miss, its hits loaded, the rest stored, finished. Keys are 36 bytes, made anew for every request.
"warm": each of the different requests went through before. "full": blocks of other requests take every slot, so each store
evicts. Times are CPU time of the calling thread, so that other load on the machine counts less, without what reading that
clock takes; the collector is on, and what an engine freezes when it has started is frozen.
"""

import argparse
import gc
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import _scheduler_report as report
import numpy as np
import tables
from vllm import __version__ as vllm_version
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.kv_offload.base import LookupResult, OffloadingManager, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvloft.vllm.manager import KvloftManager

CAPACITIES = (100_000, 1_000_000)
SIZES = (64, 2048, 8192)
POLICIES = (("lru", "lru"), ("arc", "arc"), ("hdi", "lru"))
"""kvloft's policy, and the stock one it is held against."""
REQUESTS, DIFFERENT = 400, 200
TOKENS = 16
GROUP = make_offload_key(b"", 0)
"""What makes a block's hash a key."""
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
now = time.thread_time_ns


def clock() -> int:
    """What a measurement of nothing gives."""
    differences = []
    for _ in range(2000):
        started = now()
        differences.append(now() - started)
    return sorted(differences)[1000]


CLOCK = clock()


@dataclass
class Cost:
    """What one manager spent on one series of requests."""

    manager: str
    policy: str
    capacity: int
    size: int
    state: str
    hit_ratio: float = 0.0
    ns_a_block: float = 0.0
    longest_ms: float = 0.0
    longest_call: str = ""
    by_call: dict[str, float] = field(default_factory=dict)


class Requests:
    """Different requests of `size` blocks; the keys of each are built anew whenever it is asked for."""

    def __init__(self, size: int, different: int, seed: int) -> None:
        self._hashes = [random.Random(f"{seed} {number}").randbytes(32 * size) for number in range(different)]
        self._served = 0

    def ask(self, number: int) -> tuple[list[OffloadKey], ReqContext]:
        hashes = self._hashes[number]
        keys = [cast(OffloadKey, hashes[at : at + 32] + GROUP) for at in range(0, len(hashes), 32)]
        self._served += 1
        context = ReqContext(f"request {self._served}")
        for at, key in enumerate(keys, start=1):
            context.set_offload_key_position(key, at * TOKENS)
        return keys, context


class Scheduler:
    """Calls a manager as vLLM's scheduler does, and notes what each kind of call took."""

    def __init__(self, manager: OffloadingManager) -> None:
        self.manager = manager
        self.spent: dict[str, int] = {}
        self.longest: dict[str, int] = {}
        self.blocks = self.hits = 0

    def forget(self) -> None:
        self.spent, self.longest, self.blocks, self.hits = {}, {}, 0, 0

    def serve(self, keys: list[OffloadKey], context: ReqContext) -> None:
        manager = self.manager
        self._time("on_new_request", manager.on_new_request, context)
        started = now()
        hits = prefix(manager, keys, context)
        spent = now() - started - CLOCK
        self._note("lookup", spent, longest=spent / max(1, hits))
        if hits:
            loaded = keys[:hits]
            self._time("prepare_load", manager.prepare_load, loaded, context)
            self._time("complete_load", manager.complete_load, set(loaded), context)
        if hits < len(keys):
            stored = self._time("prepare_store", manager.prepare_store, keys[hits:], context)
            if stored is not None and stored.keys_to_store:
                self._time("complete_store", manager.complete_store, set(stored.keys_to_store), context)
        self._time("on_request_finished", manager.on_request_finished, context)
        self.blocks += len(keys)
        self.hits += hits

    def _time(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        started = now()
        answer = call(*args)
        spent = now() - started - CLOCK
        self._note(name, spent, spent)
        return answer

    def _note(self, name: str, spent: int, longest: float) -> None:
        self.spent[name] = self.spent.get(name, 0) + spent
        self.longest[name] = max(self.longest.get(name, 0), int(longest))


def prefix(manager: OffloadingManager, keys: list[OffloadKey], context: ReqContext) -> int:
    """The scheduler's lookup of a full-attention group."""
    lookup, hit = manager.lookup, LookupResult.HIT
    hits = 0
    for key in keys:
        if lookup(key, context) is not hit:
            break
        hits += 1
    return hits


def make(manager: str, policy: str, capacity: int) -> OffloadingManager:
    return (KvloftManager if manager == "kvloft" else CPUOffloadingManager)(capacity, policy)


def filled(manager: str, policy: str, capacity: int, size: int, state: str, requests: int) -> Scheduler:
    """A manager with a past, its past not counted."""
    scheduler = Scheduler(make(manager, policy, capacity))
    freeze_gc_heap()
    if state == "full":
        for number in range(-(-capacity // size)):
            scheduler.serve(*Requests(size, 1, seed=-1 - number).ask(0))
    else:
        pool = Requests(size, DIFFERENT, seed=1)
        for number in range(DIFFERENT):
            scheduler.serve(*pool.ask(number))
    scheduler.forget()
    return scheduler


def draws(size: int, requests: int) -> Iterator[tuple[list[OffloadKey], ReqContext]]:
    pool = Requests(size, DIFFERENT, seed=1)
    rng = random.Random(2)
    for _ in range(requests):
        yield pool.ask(rng.randrange(DIFFERENT))


def measure(manager: str, policy: str, capacity: int, size: int, state: str, requests: int) -> Cost:
    scheduler = filled(manager, policy, capacity, size, state, requests)
    for request in draws(size, requests):
        scheduler.serve(*request)
    gc.unfreeze()
    cost = Cost(manager, policy, capacity, size, state)
    cost.hit_ratio = scheduler.hits / scheduler.blocks
    cost.by_call = {name: spent / scheduler.blocks for name, spent in scheduler.spent.items()}
    cost.ns_a_block = sum(cost.by_call.values())
    cost.longest_call = max(scheduler.longest, key=scheduler.longest.__getitem__)
    cost.longest_ms = scheduler.longest[cost.longest_call] / 1e6
    return cost


def measure_memory(manager: str, policy: str, capacity: int) -> float:
    """Bytes a block of capacity that a process grows by when a manager fills, and fills again, so that ghosts are there."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import scheduler; "
        f"scheduler.grow({manager!r}, {policy!r}, {capacity})"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(answer.stdout.split()[-1])


def grow(manager: str, policy: str, capacity: int) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    scheduler = Scheduler(make(manager, policy, 1))
    scheduler.serve(*Requests(1024, 1, seed=0).ask(0))
    before = resident()
    scheduler = Scheduler(make(manager, policy, capacity))
    size = 8192
    for number in range(2 * capacity // size + 1):
        # Every second request comes twice, so that ARC's second list and its ghosts fill as well.
        for _ in range(1 + number % 2):
            scheduler.serve(*Requests(size, 1, seed=-1 - number).ask(0))
    print((resident() - before) / capacity)


def measure_waiting(manager: str, policy: str, capacity: int) -> dict[str, float]:
    """Nanoseconds a lookup when 18 requests wait for 100 steps, beside one probe of a dict as large, called the same way."""
    size = 2048
    scheduler = Scheduler(make(manager, policy, capacity))
    table: dict[bytes, int] = {}
    pool = Requests(size, capacity // size, seed=3)
    for number in range(capacity // size):
        keys, context = pool.ask(number)
        scheduler.serve(keys, context)
        table.update(zip(keys, range(size), strict=True))
    hit = LookupResult.HIT

    class Probe:
        def lookup(self, key: bytes, context: ReqContext) -> LookupResult | None:
            return hit if key in table else None

    waiting = [pool.ask(number) for number in range(18)]
    spent = {}
    for name, target in (("probe", Probe()), (manager, scheduler.manager)):
        started = now()
        for _ in range(100):
            for keys, context in waiting:
                prefix(target, keys, context)  # type: ignore[arg-type]
        spent[name] = (now() - started) / (100 * 18 * size)
    return spent


def measure_pins(policy: str, capacity: int) -> list[dict[str, float]]:
    """Milliseconds of a store that evicts m blocks while the k oldest ones are pinned."""
    rows = []
    for pinned in (0, capacity // 100, capacity // 10):
        for m in (64, 512, 4096):
            scheduler = filled("kvloft", policy, capacity, 4096, "full", 0)
            manager, oldest = scheduler.manager, []
            for number in range(-(-pinned // 4096)):
                keys, context = Requests(4096, 1, seed=-2 - number).ask(0)
                hits = prefix(manager, keys, context)
                manager.prepare_load(keys[:hits], context)
                oldest.append((keys, context))
            spent = []
            for number in range(5):
                keys, context = Requests(m, 1, seed=10**6 + number).ask(0)
                started = now()
                manager.prepare_store(keys, context)
                spent.append((now() - started) / 1e6)
                manager.complete_store(set(keys), context)
                manager.on_request_finished(context)
            rows.append({"pinned": pinned, "evicted": m, "ms": sorted(spent)[2]})
            gc.unfreeze()
    return rows


def machine() -> dict[str, str]:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    return {
        "cpu": f"{model}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "vllm": vllm_version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer requests, capacity 100,000 only, no memory")
    parser.add_argument("--policies", default=",".join(ours for ours, _ in POLICIES))
    parser.add_argument("--capacities", default="")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--states", default="warm,full")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--parts", default="costs,waiting,pins,memory,steps")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--again", type=Path, metavar="JSON", help="measure nothing; write the document from these figures")
    options = parser.parse_args()
    if options.again:
        report.write(json.loads(options.again.read_text()), DOCUMENT)
        return
    narrower = ("short", "policies", "capacities", "sizes", "states", "requests", "parts")
    everything = all(getattr(options, name) == parser.get_default(name) for name in narrower)
    capacities = [int(n) for n in options.capacities.split(",") if n] or list(
        CAPACITIES[:1] if options.short else CAPACITIES
    )
    sizes = [int(n) for n in options.sizes.split(",") if n] or list(SIZES[:2] if options.short else SIZES)
    requests = options.requests or (60 if options.short else REQUESTS)
    policies = [(ours, stock) for ours, stock in POLICIES if ours in options.policies.split(",")]
    parts = options.parts.split(",")
    figures: dict[str, Any] = {"machine": machine(), "requests": requests, "different": DIFFERENT, "against": dict(policies)}
    if "costs" in parts:
        series = [("stock", policy) for policy in dict.fromkeys(stock for _, stock in policies)]
        series += [("kvloft", policy) for policy, _ in policies]
        figures["costs"] = []
        for capacity in capacities:
            for size in sizes:
                for state in options.states.split(","):
                    for manager, policy in series:
                        cost = measure(manager, policy, capacity, size, state, requests)
                        figures["costs"].append(asdict(cost))
                        told = (
                            f"{manager} {policy}, {capacity:,} blocks, {size} a request, {state}: {cost.ns_a_block:.0f} ns"
                        )
                        print(told, file=sys.stderr, flush=True)
    if "waiting" in parts:
        figures["waiting"] = {manager: measure_waiting(manager, "lru", capacities[-1]) for manager in ("stock", "kvloft")}
    if "pins" in parts:
        figures["pins"] = measure_pins("lru", capacities[0])
    if "memory" in parts and not options.short:
        figures["memory"] = [
            {"manager": manager, "policy": policy, "bytes_a_block": measure_memory(manager, policy, capacities[-1])}
            for manager in ("stock", "kvloft")
            for policy in dict.fromkeys(stock if manager == "stock" else ours for ours, stock in policies)
        ]
    if "steps" in parts:
        figures["steps"] = tables.measure(capacities[-1], min(8192, capacities[-1] // 8), 60)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(report.text(figures))
    if everything:
        report.write(figures, DOCUMENT)


if __name__ == "__main__":
    main()
