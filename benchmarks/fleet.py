"""What sharing a store brings to a fleet: engines behind a router, simulated on one trace.

    python benchmarks/fleet.py [TRACE] [--engines 1,2,4,8,16] [--svg docs/scaling.svg] [--short]

Without a trace, conversations as `kvloft synth` makes them. Each engine has the same GPU and host memory however many there
are; the load is that of the trace, so with more engines each gets less of it.
"""

import argparse
import itertools
import json
import sys
from functools import partial
from pathlib import Path

from kvloft.sim.fleet import Routing, simulate_fleet
from kvloft.sim.latency import Machine
from kvloft.sim.tier import TierModel
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, synthesize
from kvloft.transfer.limits import CascadeConfig

BYTES_PER_TOKEN = 128 << 10
GIB = 1 << 30


def machine(block_tokens):
    """One engine: a model of 8 billion parameters on a GPU of 2023, with 20 GiB for its prefix cache."""
    block_bytes = block_tokens * BYTES_PER_TOKEN
    return Machine(
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        prefill_tokens_per_second=20_000.0,
        gpu_blocks=20 * GIB // block_bytes,
    )


def store(latency, gigabytes):
    """One that all share: 8 TiB, and what its network gives in all, half of it for writes."""
    return TierModel("store", 8 << 40, latency, gigabytes * 1e9, gigabytes * 0.5e9)


def rows(trace, block_tokens, engines, host_bytes, latency, gigabytes):
    settings = {"cascade": partial(CascadeConfig, job_blocks=max(1, (256 << 20) // (block_tokens * BYTES_PER_TOKEN)))}
    one = machine(block_tokens)
    for count, routing, shared in itertools.product(engines, Routing, (False, True)):
        yield simulate_fleet(
            trace(),
            one,
            host_bytes // one.block_bytes,
            count,
            routing,
            store(latency, gigabytes) if shared else None,
            **settings,
        )


def chart(results, path):
    import altair

    data = altair.Data(
        values=[
            {
                "engines": result.engines,
                "prompt tokens not computed": result.saved_tokens,
                "fleet": f"{result.routing}, {'shared store' if result.shared else 'no store'}",
            }
            for result in results
        ]
    )
    altair.Chart(data, width=520, height=300).mark_line(point=True).encode(
        x=altair.X(
            "engines:Q",
            scale=altair.Scale(type="log", base=2),
            axis=altair.Axis(values=sorted({r.engines for r in results})),
        ),
        y=altair.Y("prompt tokens not computed:Q", axis=altair.Axis(format="%"), scale=altair.Scale(zero=True)),
        color=altair.Color("fleet:N", legend=altair.Legend(title=None, orient="bottom", columns=2)),
    ).save(str(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--block-tokens", type=int, default=512, help="of the trace, or of what is generated")
    parser.add_argument("--requests", type=int, default=None, help="so many, from the beginning")
    parser.add_argument("--engines", default="1,2,4,8,16")
    parser.add_argument("--host-gib", type=int, default=64, help="host memory of each engine")
    parser.add_argument("--latency", type=float, default=0.001, help="of the store, in seconds")
    parser.add_argument("--gigabytes", type=float, default=20.0, help="a second that the store reads for all together")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--short", action="store_true")
    asked = parser.parse_args()
    engines = [int(part) for part in ("1,4" if asked.short else asked.engines).split(",")]
    count = 300 if asked.short and asked.requests is None else asked.requests

    def trace():
        requests = open_trace(asked.trace) if asked.trace else synthesize(Workload(block_tokens=asked.block_tokens))
        return itertools.islice(iter(requests), count)

    results = []
    for result in rows(trace, asked.block_tokens, engines, asked.host_gib * GIB, asked.latency, asked.gigabytes):
        results.append(result)
        if not asked.json:
            hits = " ".join(f"{place} {ratio:.1%}" for place, ratio in sorted(result.hit_ratios.items()))
            print(
                f"{result.engines:3d} engines, {result.routing:11s}, {'shared store' if result.shared else 'no store':12s}: "
                f"not computed {result.saved_tokens:6.1%}, TTFT {result.ttft_mean:7.2f} s mean "
                f"{result.ttft_percentiles['50']:7.2f} s median, busiest x{result.busiest:.2f}, hits {hits}",
                flush=True,
            )
    if asked.json:
        json.dump(
            [{name: getattr(result, name) for name in result.__struct_fields__} for result in results], sys.stdout, indent=2
        )
    if asked.svg:
        chart(results, asked.svg)


if __name__ == "__main__":
    main()
