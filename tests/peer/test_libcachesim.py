"""Hits of policies on blocks that stand alone, against libCacheSim's (`pip install libcachesim`, GPL; for development only).

A request of one block is all that libCacheSim knows: no chains, no batches, no pins. There these policies are the same
algorithms. Others of the same name are not: `lfu` ages (libCacheSim's LFU does not), and for `2q`, `slru`, `s3-fifo`,
`lirs`, `w-tinylfu` and `gdsf` the implementations differ in sizes of their parts, in rounding and in what a ghost is.
"""

import random

import pytest

from kvloft.sim.replay import Replay
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace

libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed; it is needed for this check only")

SAME = {"lru": "LRU", "fifo": "FIFO", "arc": "ARC", "sieve": "Sieve"}
SIZES = (50, 200, 700)


def skewed(n=8_000, universe=1_000, seed=0):
    rng = random.Random(seed)
    return [int(universe * rng.random() ** 3) for _ in range(n)]


def scanned(n=8_000):
    """A loop, scans, and a few favourites."""
    rng = random.Random(1)
    keys = []
    while len(keys) < n:
        kind = rng.random()
        if kind < 0.4:
            keys += range(300)
        elif kind < 0.6:
            keys += range(len(keys) + 10_000, len(keys) + 10_000 + rng.randrange(400))
        else:
            keys += [rng.randrange(40) for _ in range(50)]
    return keys


def hits_of_kvloft(policy, capacity, keys):
    run = Replay(policy, capacity)
    return sum(run.step(TraceRequest([key])) for key in keys)


def hits_of_libcachesim(policy, capacity, keys):
    cache = getattr(libcachesim, SAME[policy])(capacity)
    request = libcachesim.Request()
    request.obj_size = 1
    hits = 0
    for at, key in enumerate(keys):
        request.obj_id, request.clock_time = key + 1, at
        hits += bool(cache.get(request))
    return hits


@pytest.mark.parametrize("policy", SAME)
@pytest.mark.parametrize("keys", [skewed(), scanned()], ids=["skewed", "scanned"])
def test_flat_keys_give_the_same_hits(policy, keys):
    ours = [hits_of_kvloft(policy, size, keys) for size in SIZES]
    assert ours == [hits_of_libcachesim(policy, size, keys) for size in SIZES]
    assert len(set(ours)) == len(SIZES)


@pytest.mark.parametrize("policy", SAME)
def test_the_public_trace_gives_the_same_hits(policy, shared):
    trace = open_trace(shared / "traces" / "mooncake_conversation.jsonl")
    keys = [key for request in trace for key in request.keys][:10_000]
    assert hits_of_kvloft(policy, 500, keys) == hits_of_libcachesim(policy, 500, keys)
