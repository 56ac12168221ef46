"""Speed of the simulation, as ratios to the simplest LRU one could write in Python, on the same trace and machine.

    python benchmarks/sim.py [TRACE] [--policies lru,arc] [--large 100000000] [--short]
    python benchmarks/sim.py --lengths 64,8192 --policies hdi

The second holds policies against LRU in a full cache of a million blocks, with requests of these lengths in blocks.
Ratios above 1 are faster than that. CPU time is used, so that a busy machine does not spoil them.
"""

import argparse
import gc
import itertools
import random
import resource
import time
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np

from kvloft.policies import policy_names
from kvloft.sim.bound import Future, optimum
from kvloft.sim.curve import LRUCurve, lru_curve
from kvloft.sim.replay import Replay
from kvloft.traces.columns import Columns, columns, hold
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, synthesize


def measure(work):
    gc.collect()
    begun = time.process_time()
    result = work()
    return result, time.process_time() - begun


def simplest_lru(requests, capacity):
    cache = OrderedDict()
    hits = 0
    for request in requests:
        leading = True
        for key in request.keys:
            leading = leading and key in cache
            hits += leading
        for key in reversed(request.keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def large_trace(blocks):
    """Conversations of 200 blocks a request, half of them known; numbers count up, as in public traces."""
    rng = np.random.default_rng(0)
    free, made, talks = 0, 0, []
    while made < blocks:
        keys, lengths = [], []
        for _ in range(10_000):
            if talks and rng.random() < 0.7:
                at = int(rng.integers(max(0, len(talks) - 20_000), len(talks)))
                start, size = talks[at]
            else:
                start, size = free, 100
                free += 400
            size = min(size + 40, 400)
            talks.append((start, size))
            keys.append(np.arange(start, start + size))
            lengths.append(size)
        del talks[:-20_000]
        made += sum(lengths)
        yield Columns(np.concatenate(keys), np.array(lengths))


def requests_of(length):
    """Conversations: most requests go on from half of an earlier one's blocks."""
    rng = random.Random(0)
    free, talks = 0, deque(maxlen=400)
    while True:
        known = talks[rng.randrange(len(talks))][: length // 2] if talks and rng.random() < 0.7 else []
        keys = known + [b"%036d" % key for key in range(free, free + length - len(known))]
        free += length
        talks.append(keys)
        yield TraceRequest(keys)


def full_cache(policy, length, capacity=1_000_000):
    """Seconds of a policy for some hundred thousand blocks, when the cache is full."""
    run, requests = Replay(policy, capacity), requests_of(length)
    while run.evicted < capacity // 10:
        run.step(next(requests))
    measured = list(itertools.islice(requests, max(60, 256_000 // length)))
    return measure(lambda: [run.step(request) for request in measured])[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--policies", help="all if none are given")
    parser.add_argument("--large", type=int, default=0, help="block accesses of a generated trace for the LRU curve alone")
    parser.add_argument("--lengths", help="of requests, in blocks")
    parser.add_argument("--short", action="store_true", help="300 requests, and LRU and ARC unless policies are given")
    options = parser.parse_args()
    count = 300 if options.short else None
    policies = options.policies.split(",") if options.policies else ["lru", "arc"] if options.short else policy_names()
    for length in map(int, options.lengths.split(",")) if options.lengths else ():
        base = min(full_cache("lru", length) for _ in range(2))
        for name in policies:
            seconds = min(full_cache(name, length) for _ in range(2))
            print(f"replay {name}, {length} blocks a request: {seconds / base:.2f} times LRU's time")
    if options.lengths:
        return
    trace = open_trace(options.trace) if options.trace else list(synthesize(Workload(requests=3000, block_tokens=256)))
    requests, reading = measure(lambda: list(itertools.islice(trace, count)))
    whole = hold(requests)
    total, unique = len(whole.keys), len(np.unique(whole.keys))
    capacity = unique // 20
    _, base = measure(lambda: simplest_lru(requests, capacity))
    print(f"{total:,} block accesses, {unique:,} unique, cache of {capacity:,}; simplest LRU: {total / base:,.0f} a second")

    def tell(what, seconds, times=1):
        print(f"{what:32} {times * base / seconds:8.2f}x  {times * total / seconds:14,.0f} block accesses a second")

    if options.trace:
        tell("reading", reading)
    parts = list(columns(requests, lambda: 1 << 21))

    def curve():
        made = LRUCurve()
        for part in parts:
            made.add(part)
        return made

    tell("LRU curve, all sizes at once", measure(curve)[1])
    if options.trace and not options.short:
        tell("LRU curve with reading", measure(lambda: lru_curve(trace))[1])
    future, prepared = measure(lambda: Future(whole))
    tell("bound: next uses", prepared)
    tell("bound: one size", measure(lambda: optimum(future, capacity))[1])
    for name in policies:

        def replay(name=name):
            run = Replay(name, capacity)
            for request in requests:
                run.step(request)

        tell(f"replay {name}", measure(replay)[1])
    if options.large:
        made = LRUCurve()

        def large():
            for part in large_trace(options.large):
                made.add(part)

        _, seconds = measure(large)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        print(f"LRU curve of {made.blocks:,} accesses, {made.unique:,} unique: {seconds:.0f} s, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
