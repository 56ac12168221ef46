"""Every policy on every trace at six sizes, beside the bound, with hints, and what each part of HDI brings.

    python benchmarks/policies.py [--shared ../shared] [--jobs 2] [--short] [--json FILE]

Writes the tables of docs/policies.md (between its markers) and docs/policies.svg. Takes about a quarter of an hour on two
cores; --short runs a few policies on small traces, in a minute, and writes nothing. All seeds are in the tables.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvloft.policies import BUILTIN
from kvloft.policies.hazard import Hazards, Table
from kvloft.policies.hdi import HDI
from kvloft.policies.shadow import Rival
from kvloft.sim.bound import Future, optimum
from kvloft.sim.hints import tell_ends
from kvloft.sim.replay import Replay
from kvloft.traces.columns import hold
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, synthesize

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "policies.md"
SIZES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
MIXES: dict[str, dict[str, float]] = {
    "chat": {"chat": 1},
    "agents": {"agents": 1},
    "rag": {"rag": 1},
    "mixed": {"chat": 4, "agents": 1, "rag": 2, "scan": 0.5},
}
SEED = 2
"""Not the one that HDI was tuned on."""
TUNED = "conversation, first half"
REST = "conversation, second half"
ABLATIONS = {
    "hdi": "all of it",
    "hdi-no-classes": "one class for all blocks",
    "hdi-no-ghosts": "nothing learned after eviction",
    "hdi-no-scale": "classes shrunk to the average at once, not to a multiple of it",
    "hdi-no-rival": "no regard for LRU",
    "hdi-stores-all": "no tail declined",
}


def traces(shared: Path, short: bool) -> dict[str, Callable[[], list[TraceRequest]]]:
    """By name: how to get the requests."""
    requests = 500 if short else 2500
    made = {
        f"{name}, seed {SEED}": lambda mix=mix: list(
            synthesize(Workload(requests=requests, seed=SEED, block_tokens=512, mix=mix))
        )
        for name, mix in MIXES.items()
    }
    if short:
        return dict(list(made.items())[:2])
    conversation = shared / "traces" / "mooncake_conversation.jsonl"
    agents = shared / "traces" / "claude_code"
    whole = cache(lambda: list(open_trace(conversation)))
    found: dict[str, Callable[[], list[TraceRequest]]] = {}
    if conversation.exists():
        found["conversation"] = whole
        found[TUNED] = lambda: whole()[: len(whole()) // 2]
        found[REST] = lambda: whole()[len(whole()) // 2 :]
    else:
        print(f"{conversation} is not there: left out", file=sys.stderr)
    if agents.exists():
        found[f"coding agents, seed {SEED}"] = lambda: list(open_trace(agents, block_tokens=512, seed=SEED))
    else:
        print(f"{agents} is not there: left out", file=sys.stderr)
    return found | made


def variant(name: str) -> str | type[HDI]:
    """A policy by name, those of the ablation included."""
    if name in BUILTIN or name not in ABLATIONS:
        return name
    return type(name, (HDI,), {"name": name, **_CHANGES[name]})


class _OneClass(Hazards):
    def _hazard(self) -> Table:
        every = super()._hazard()
        return np.broadcast_to(np.average(every, axis=0, weights=self._observed.sum(axis=1) + 1e-9), every.shape).copy()


_CHANGES: dict[str, dict[str, Any]] = {
    "hdi-no-classes": {"HAZARDS": _OneClass},
    "hdi-no-ghosts": {"GHOSTS": 0},
    "hdi-no-scale": {"HAZARDS": type("Unscaled", (Hazards,), {"SCALE": 1e12})},
    "hdi-no-rival": {"RIVAL": type("Unrivalled", (Rival,), {"affords": lambda *_: True})},
    "hdi-stores-all": {"DECLINE": 0.0},
}
"""What each ablation changes."""

_requests: dict[tuple[str, float | None], list[TraceRequest]] = {}


def run(shared: str, short: bool, trace: str, policy: str, told: float | None) -> list[dict[str, Any]]:
    """One policy on one trace at all sizes."""
    key = (trace, told)
    if key not in _requests:
        _requests.clear()
        requests = traces(Path(shared), short)[trace]()
        if told is None:
            _requests[key] = [msgspec.structs.replace(request, session=None, last=False) for request in requests]
        else:
            _requests[key] = tell_ends(requests, told, seed=1)
    requests = _requests[key]
    unique = len({block for request in requests for block in request.keys})
    total = sum(len(request.keys) for request in requests)
    future = Future(hold(requests)) if policy == "optimum" else None
    rows = []
    for size in SIZES:
        capacity = max(1, int(size * unique))
        began = time.process_time()
        if future:
            hits, stored = sum(optimum(future, capacity)[0]), 0
        else:
            replay = Replay(variant(policy), capacity)
            for request in requests:
                replay.step(request)
            hits, stored = replay.hits, replay.pool.counters.stored
        seconds = time.process_time() - began
        rows.append(
            {"trace": trace, "policy": policy, "told": told, "size": size, "capacity": capacity, "hits": hits,
             "total": total, "stored": stored, "seconds": seconds}
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("KVLOFT_SHARED", ROOT.parent / "shared")))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    names = list(traces(asked.shared, asked.short))
    policies = ["lru", "arc", "hdi"] if asked.short else list(BUILTIN)
    runs: list[tuple[str, str, float | None]] = []
    for name in names:
        runs += [(name, policy, None) for policy in [*policies, "optimum"]]
        if name in (TUNED, REST):
            runs += [(name, policy, None) for policy in ABLATIONS if policy not in BUILTIN]
        if name in (REST, f"chat, seed {SEED}"):
            runs += [(name, policy, told) for told in (0.5, 1.0) for policy in ("lru", "arc", "hdi")]
    runs = list(dict.fromkeys(runs))
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.jobs) as workers:
        waiting = [workers.submit(run, str(asked.shared), asked.short, *what) for what in runs]
        for (name, policy, told), done in zip(runs, waiting, strict=True):
            rows += done.result()
            ratios = " ".join(f"{100 * row['hits'] / row['total']:5.2f}" for row in rows[-len(SIZES) :])
            print(f"{name:28} {policy:18} {'' if told is None else f'ends {told:.0%}':10} {ratios}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    if not asked.short:
        from _policies_report import write

        write(rows, DOCUMENT, ABLATIONS, TUNED, REST)


if __name__ == "__main__":
    main()
