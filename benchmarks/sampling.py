"""How often the truth lies within the error that `kvloft curve --sample` shows, by the size of the samples.

python benchmarks/sampling.py [--short]

Made-up traces are replayed whole, and estimated from four samples at several rates. With four samples the truth should lie
within 3.18 standard errors in 95 of 100 cases (Student's t with three degrees of freedom).
"""

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvloft.errors import ConfigError
from kvloft.sim import sample
from kvloft.sim.replay import Capacity
from kvloft.sim.sample import estimate, find_trunk
from kvloft.sim.sweep import sweep
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, parse_mix, synthesize, write_trace

MIXES = {"mixed": "chat=0.6,agents=0.1,rag=0.25,scan=0.05", "chat": "chat=1"}
WITHIN = 3.18
EDGES = (12, 25, 50, 100, 200, 400)


def cases(mix: str, requests: int, seeds: int, rates: Sequence[float], folder: Path) -> Iterator[tuple[int, float, float]]:
    """Families in a sample, distance from the truth, error shown."""
    for seed in range(seeds):
        path = folder / f"{requests}-{seed}.jsonl"
        workload = Workload(requests=requests, seed=seed, block_tokens=64, sessions_a_second=2.0, mix=parse_mix(mix))
        write_trace(path, workload, synthesize(workload), lambda *_: None)
        trace, sizes = open_trace(path), [Capacity.parse("5%"), Capacity.parse("20%")]
        truth, found = sweep(trace, ["lru"], sizes, 1), find_trunk(trace)
        for rate in rates:
            for choice in range(3):
                try:
                    estimates = estimate(trace, ["lru"], sizes, rate, 4, choice, 1, None, found)
                except ConfigError:
                    continue
                for guess, exact in zip(estimates, truth, strict=True):
                    yield guess.families, abs(guess.hit_ratio - exact.hit_ratio), guess.error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="take seconds; says little")
    short = parser.parse_args().short
    sample._FEWEST = 0  # Refused otherwise: this is to say why.
    lengths, seeds, rates = ((300,), 1, (0.1, 0.25)) if short else ((300, 1000, 3000), 3, (0.02, 0.05, 0.1, 0.25))
    print("families in a sample | cases | truth within the error | error shown | true error (root mean square)")
    for name, mix in MIXES.items():
        found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        with tempfile.TemporaryDirectory() as folder:
            for requests in lengths:
                for families, off, error in cases(mix, requests, seeds, rates, Path(folder)):
                    found[next((edge for edge in EDGES if families <= edge), 0)].append((off, error))
        for edge in (*EDGES, 0):
            pairs = found.get(edge, [])
            if pairs:
                within = sum(off <= WITHIN * error for off, error in pairs) / len(pairs)
                shown, true = (math.sqrt(sum(pair[at] ** 2 for pair in pairs) / len(pairs)) for at in (1, 0))
                size = f"up to {edge}" if edge else f"more than {EDGES[-1]}"
                print(f"{name}: {size} | {len(pairs)} | {within:.0%} | {shown:.3f} | {true:.3f}")


if __name__ == "__main__":
    main()
