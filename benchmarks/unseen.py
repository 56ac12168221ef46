"""HDI beside LRU on generated workloads of seeds that nobody has tuned on, most of them short: how far it falls behind.

    python benchmarks/unseen.py [--seeds 301-306] [--policy hdi] [--jobs 2] [--json FILE] [--short]

Six sizes of cache, as in benchmarks/policies.py; points are per cent of all blocks asked for.
"""

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from policies import MIXES, SIZES

from kvloft.sim.replay import Replay, survey
from kvloft.traces.event import TraceRequest
from kvloft.traces.synth import Workload, synthesize

MINDED = 0.25


def generated(requests: int, seed: int, mix: dict[str, float], **settings: float) -> list[TraceRequest]:
    return list(synthesize(Workload(requests=requests, seed=seed, mix=mix, block_tokens=512, **settings)))


def in_turn(*parts: list[TraceRequest]) -> list[TraceRequest]:
    """One workload after the other, without a block in common."""
    numbers: dict[tuple[int, object], int] = {}
    return [
        msgspec.structs.replace(request, keys=[numbers.setdefault((at, key), len(numbers)) for key in request.keys])
        for at, part in enumerate(parts)
        for request in part
    ]


KINDS: dict[str, Callable[[int], list[TraceRequest]]] = {
    "agents": lambda seed: generated(2500, seed, {"agents": 1}),
    "agents, short": lambda seed: generated(1000, seed, {"agents": 1}),
    "agents, short, many at a time": lambda seed: generated(1000, seed, {"agents": 1}, sessions_a_second=0.3),
    "chat, short": lambda seed: generated(1000, seed, {"chat": 1}),
    "chat and agents, short": lambda seed: generated(1200, seed, {"chat": 3, "agents": 1}),
    "mixed": lambda seed: generated(2500, seed, MIXES["mixed"]),
    "chat, then agents, then documents": lambda seed: in_turn(
        *(generated(1000, seed, {kind: 1}) for kind in ("chat", "agents", "rag"))
    ),
}


def measure(kind: str, seed: int, policy: str) -> list[float]:
    """Points against LRU, by size. Nobody is told when conversations end."""
    requests = [msgspec.structs.replace(request, session=None, last=False) for request in KINDS[kind](seed)]
    unique = survey(requests).unique
    points = []
    for size in SIZES:
        ratios = []
        for name in (policy, "lru"):
            replay = Replay(name, int(size * unique))
            for request in requests:
                replay.step(request)
            ratios.append(100 * replay.hits / replay.total)
        points.append(ratios[0] - ratios[1])
    return points


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default="301-306", help="first-last")
    arguments.add_argument("--policy", default="hdi")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("--json", type=Path, metavar="FILE")
    arguments.add_argument("--short", action="store_true", help="one seed, short workloads only")
    given = arguments.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    kinds = list(KINDS)
    if given.short:
        seeds, kinds = seeds[:1], [kind for kind in kinds if "short" in kind]
    runs = [(kind, seed) for kind in kinds for seed in seeds]
    with ProcessPoolExecutor(given.jobs) as executor:
        jobs = [executor.submit(measure, kind, seed, given.policy) for kind, seed in runs]
        found = [(*run, job.result()) for run, job in zip(runs, jobs, strict=True)]
    print(f"{'points against LRU':36}{'worst':>8}{'mean':>8}{'best':>8}")
    for kind in kinds:
        of_kind = [point for name, _, points in found if name == kind for point in points]
        print(f"{kind:36}{min(of_kind):8.2f}{sum(of_kind) / len(of_kind):8.2f}{max(of_kind):8.2f}")
    cells = [point for _, _, points in found for point in points]
    behind = sum(point < -MINDED for point in cells)
    print(f"{'all':36}{min(cells):8.2f}{sum(cells) / len(cells):8.2f}{max(cells):8.2f}")
    print(f"more than {MINDED} behind: {behind} of {len(cells)} cells, {len(runs)} workloads")
    if given.json:
        given.json.write_text(json.dumps([{"kind": kind, "seed": seed, "points": points} for kind, seed, points in found]))


if __name__ == "__main__":
    main()
