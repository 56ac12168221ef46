"""Bounds against brute force, and every policy against the bounds."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft.policies import policy_names
from kvloft.sim.bound import Future, Min, optimum
from kvloft.sim.replay import Replay
from kvloft.traces.columns import hold
from kvloft.traces.event import TraceRequest


@st.composite
def chains(draw, nodes=8, requests=8):
    """Requests that each ask for a path from a root, in a random forest: ids are chained by construction."""
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, nodes)))]

    def path(node):
        return [*path(parents[node]), node] if node >= 0 else []

    ends = draw(st.lists(st.integers(0, len(parents) - 1), max_size=requests))
    return [TraceRequest(path(end)) for end in ends]


def brute_force(requests, capacity):
    """The most hits of leading runs, trying every subset that a cache might keep after each request."""
    best = {frozenset(): 0}
    for request in requests:
        after = {}
        for held, hits in best.items():
            run = 0
            while run < len(request.keys) and request.keys[run] in held:
                run += 1
            at_hand = sorted(held.union(request.keys))
            for size in range(min(capacity, len(at_hand)) + 1):
                for kept in map(frozenset, combinations(at_hand, size)):
                    after[kept] = max(after.get(kept, 0), hits + run)
        best = after
    return max(best.values())


@given(chains(nodes=6, requests=7), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_the_optimum_is_what_brute_force_finds(requests, capacity):
    hits, _ = optimum(Future(hold(requests)), capacity)
    assert sum(hits) == brute_force(requests, capacity)


def naive_optimum(requests, capacity):
    """The rule itself, with a set: keep the blocks used soonest, and of one request's the ones nearest to its head."""
    held, hits, stored = set(), [], 0
    for at, request in enumerate(requests):
        run = 0
        while run < len(request.keys) and request.keys[run] in held:
            run += 1
        hits.append(run)
        nexts = {}
        for key in held.union(request.keys):
            for later in range(at + 1, len(requests)):
                if key in requests[later].keys:
                    nexts[key] = (later, requests[later].keys.index(key))
                    break
        kept = set(sorted(nexts, key=nexts.get)[:capacity])
        stored += len(kept - held)
        held = kept
    return hits, stored


@given(chains(nodes=30, requests=30), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_the_optimum_follows_its_rule_request_by_request(requests, capacity):
    assert optimum(Future(hold(requests)), capacity) == naive_optimum(requests, capacity)


@given(chains(nodes=20, requests=25), st.integers(1, 12), st.sampled_from(policy_names()))
@settings(max_examples=200, deadline=None)
def test_no_policy_hits_more_than_the_optimum(requests, capacity, policy):
    future = Future(hold(requests))
    bound, _ = optimum(future, capacity)
    for run in (Replay(policy, capacity), Replay(Min(capacity, future), capacity)):
        for request in requests:
            run.step(request)
        assert run.hits <= sum(bound)


@given(chains(nodes=30, requests=30))
@settings(max_examples=100, deadline=None)
def test_more_memory_never_hurts_the_optimum(requests):
    future = Future(hold(requests))
    totals = [sum(optimum(future, capacity)[0]) for capacity in range(1, 32)]
    assert all(less <= more for less, more in pairwise(totals))


@given(chains(nodes=30, requests=30), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_min_evicts_what_is_used_furthest_ahead(requests, capacity):
    future = Future(hold(requests))
    run = Replay(Min(capacity, future), capacity)
    held = set()
    for at, request in enumerate(requests):
        run.step(request)
        now = {key for key in range(30) if key in run.pool}
        gone = held - now
        if gone:
            nexts = {
                key: next((later for later in range(at, len(requests)) if key in requests[later].keys), len(requests))
                for key in held
            }
            stayed = [nexts[key] for key in held & now if key not in request.keys]
            assert min(nexts[key] for key in gone) >= max(stayed, default=0)
        held = now
