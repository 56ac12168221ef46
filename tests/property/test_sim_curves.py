"""The one-pass LRU curve against the pool, and what more memory does to LRU."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft.sim.curve import LRUCurve
from kvloft.sim.replay import Replay
from kvloft.traces.columns import columns
from kvloft.traces.event import TraceRequest


@st.composite
def chains(draw, nodes=25, requests=40):
    """Requests that each ask for a path from a root, in a random forest: ids are chained by construction."""
    far = draw(st.sampled_from([0, 1 << 40]))
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, nodes)))]

    def path(node):
        return [*path(parents[node]), node + far * (node % 2)] if node >= 0 else []

    ends = draw(st.lists(st.integers(-1, len(parents) - 1), max_size=requests))
    return [TraceRequest(path(end)) for end in ends]


def curve_of(requests, chunk):
    curve = LRUCurve()
    for part in columns(requests, lambda: chunk):
        curve.add(part)
    return curve


def pool_hits(requests, capacity):
    run = Replay("lru", capacity)
    return sum(run.step(request) for request in requests)


@given(chains(), st.sampled_from([1, 5, 1000]))
@settings(max_examples=200, deadline=None)
def test_the_curve_is_what_the_pool_does_at_every_size_in_chunks_of_any_size(requests, chunk):
    curve = curve_of(requests, chunk)
    sizes = range(max(1, curve.longest), 28)
    runs = [Replay("lru", size) for size in sizes]
    for run in runs:
        for request in requests:
            run.step(request)
    results = [run.result("t", 0.5) for run in runs]
    assert curve.results("t", [(size, 0.5) for size in sizes]) == results
    assert curve.hits(sizes) == [result.hit_blocks for result in results]
    assert curve.blocks == sum(len(request.keys) for request in requests)
    assert curve.unique == len({key for request in requests for key in request.keys})


@given(chains())
@settings(max_examples=100, deadline=None)
def test_more_memory_never_hurts_lru_once_the_longest_request_fits(requests):
    longest = max((len(request.keys) for request in requests), default=0)
    hits = [pool_hits(requests, size) for size in range(max(1, longest), 28)]
    assert all(less <= more for less, more in pairwise(hits))


@given(st.lists(st.integers(0, 12), max_size=80))
@settings(max_examples=100, deadline=None)
def test_more_memory_never_hurts_lru_on_blocks_that_stand_alone(keys):
    requests = [TraceRequest([key]) for key in keys]
    hits = [pool_hits(requests, size) for size in range(1, 14)]
    assert all(less <= more for less, more in pairwise(hits))
    assert curve_of(requests, 7).hits(range(1, 14)) == hits


def test_more_memory_may_hurt_where_the_longest_request_does_not_fit():
    """A cache too small for a long request refuses it and keeps what it has; a larger one gives that up for it."""
    requests = [TraceRequest([1, 2]), TraceRequest([10, 11, 12]), TraceRequest([1, 2])]
    assert pool_hits(requests, 2) == 2
    assert pool_hits(requests, 3) == 0
