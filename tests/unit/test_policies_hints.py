"""Hints: read without failing, executed with any policy."""

from collections import OrderedDict
from collections.abc import Callable
from cProfile import Profile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft import BlockPool, Request
from kvloft.errors import ConfigError
from kvloft.policies import BUILTIN
from kvloft.policies.hints import read_hints
from kvloft.policies.told import Conversations
from kvloft.sim.hints import conversations, parse_session_end, tell_ends
from kvloft.traces.event import TraceRequest

POLICIES = sorted(BUILTIN)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def serve(pool: BlockPool, keys: list, request: Request) -> list:
    """A request from beginning to end; what was evicted for it."""
    hit = keys[: pool.match_prefix(keys)]
    pool.complete_load(pool.prepare_load(hit, request).keys, request)
    plan = pool.prepare_store(keys, request)
    assert plan is not None
    pool.complete_store(plan.keys, request)
    pool.finish(request)
    return plan.evicted


def chain(name: str, length: int, head: list | None = None) -> list:
    return [*(head or []), *((name, place) for place in range(length))]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_over_leaves_first(policy: str) -> None:
    pool = BlockPool(12, policy)
    serve(pool, chain("old", 4), Request(1, session="old"))
    serve(pool, chain("over", 4), Request(2, session="over"))
    serve(pool, chain("over", 4) + chain("more", 2), Request(3, session="over", last=True))
    serve(pool, chain("new", 2), Request(4, session="new"))
    assert serve(pool, chain("next", 3), Request(5)) == [("more", 1), ("more", 0), ("over", 3)]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_others_use_too_is_not_over(policy: str) -> None:
    pool = BlockPool(10, policy)
    system = chain("system", 3)
    serve(pool, chain("a", 2, system), Request(1, session="a"))
    serve(pool, chain("b", 2, system), Request(2, session="b"))
    serve(pool, chain("b", 2, system), Request(3, session="b", last=True))
    serve(pool, chain("a", 2, system), Request(4, session="a", last=True))
    evicted = serve(pool, chain("new", 7), Request(5))
    assert set(evicted[:4]) == {*chain("a", 2), *chain("b", 2)} and len(evicted) == 4
    assert pool.match_prefix(system) == 3


def test_sharing_is_known_beyond_eviction() -> None:
    pool = BlockPool(6, "lru")
    system = chain("system", 2)
    serve(pool, chain("a", 2, system), Request(1, session="a"))
    serve(pool, chain("flood", 6), Request(2, session="flood", last=True))
    serve(pool, chain("b", 2, system), Request(3, session="b", last=True))
    serve(pool, chain("new", 4), Request(4, session="new"))
    assert pool.match_prefix(system) == 2


def test_a_conversation_that_goes_on_after_all_is_alive() -> None:
    pool = BlockPool(8, "lru")
    serve(pool, chain("a", 4), Request(1, session="a", last=True))
    serve(pool, chain("a", 4), Request(2, session="a"))
    serve(pool, chain("b", 4), Request(3, session="b"))
    serve(pool, chain("a", 4), Request(4, session="a"))
    assert serve(pool, chain("new", 4), Request(5)) == list(reversed(chain("b", 4)))


@pytest.mark.parametrize("policy", POLICIES)
def test_time_to_live(policy: str) -> None:
    clock = Clock()
    pool = BlockPool(9, policy, clock=clock)
    serve(pool, chain("a", 3), Request(1))
    serve(pool, chain("short", 3), Request(2, ttl=10))
    serve(pool, chain("b", 3), Request(3, ttl=1000))
    clock.now += 11
    assert serve(pool, chain("new", 3), Request(4)) == list(reversed(chain("short", 3)))


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_is_soft(policy: str) -> None:
    pool = BlockPool(8, policy)
    serve(pool, chain("dear", 2), Request(1, priority=10))
    serve(pool, chain("cheap", 2), Request(2, priority=-1))
    serve(pool, chain("a", 4), Request(3))
    assert serve(pool, chain("b", 2), Request(4)) == list(reversed(chain("cheap", 2)))
    serve(pool, chain("c", 2), Request(5))
    assert pool.match_prefix(chain("dear", 2)) == 2
    for number in range(20):
        serve(pool, chain(f"more {number}", 4), Request(6 + number))
    assert pool.match_prefix(chain("dear", 2)) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_pins_stay_while_others_can_leave(policy: str) -> None:
    clock = Clock()
    pool = BlockPool(8, policy, clock=clock)
    serve(pool, chain("pinned", 3), Request(1, pin_until=clock.now + 60))
    for number in range(10):
        serve(pool, chain(f"flood {number}", 4), Request(2 + number))
    assert pool.match_prefix(chain("pinned", 3)) == 3
    assert pool.prepare_store(chain("all", 8), Request("all")) is not None, "a pin is a wish, not a refusal"
    clock.now += 61


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tenant_over_its_quota_makes_room_itself(policy: str) -> None:
    pool = BlockPool(10, policy, quotas={"greedy": 0.4})
    serve(pool, chain("modest", 6), Request(1, tenant="modest"))
    for number in range(10):
        serve(pool, chain(f"greedy {number}", 2), Request(2 + number, tenant="greedy"))
    assert pool.match_prefix(chain("modest", 6)) == 6


def calls(act: Callable[[], object]) -> int:
    """How many functions are called, those of C included."""
    profile = Profile()
    profile.enable()
    act()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def pinned(chains: int) -> BlockPool:
    """Half of the blocks are pinned, and the oldest of all."""
    pool = BlockPool(8 * chains, "lru")
    for number in range(chains):
        serve(pool, chain(f"{number}", 8), Request(number, pin_until=2e9 if number < chains // 2 - 1 else None))
    return pool


def dead_before_the_living(chains: int) -> BlockPool:
    """Conversations are over, but each has a branch behind it that is not."""
    pool = BlockPool(8 * chains, "lru")
    for number in range(chains // 2):
        serve(pool, chain(f"{number}", 8), Request((number, 1), session=f"{number}"))
        serve(pool, chain(f"{number}'s", 8, chain(f"{number}", 8)), Request((number, 2), session=f"other {number}"))
        serve(pool, chain(f"{number}", 8), Request((number, 3), session=f"{number}", last=True))
    return pool


def tenants_before_others(chains: int) -> BlockPool:
    """A tenant that is over its quota has stored what others go on from."""
    pool = BlockPool(8 * chains, "lru", quotas={"": 0.1})
    for number in range(chains // 2):
        serve(pool, chain(f"{number}", 8), Request((number, 1)))
        serve(pool, chain(f"{number}'s", 8, chain(f"{number}", 8)), Request((number, 2), tenant="other"))
    return pool


@pytest.mark.parametrize("made", [pinned, dead_before_the_living, tenants_before_others])
def test_hints_cost_what_is_evicted_and_passed_by(made: Callable[[int], BlockPool]) -> None:
    """And not what there is: a store takes as many steps in a cache eight times as large."""
    small, large = made(20), made(160)
    counts = [calls(lambda pool=pool: serve(pool, chain("new", 8), Request("new"))) for pool in (small, large)]
    assert counts[1] <= 1.1 * counts[0]


def test_deadlines_that_are_put_off_take_no_room() -> None:
    clock = Clock()
    pool = BlockPool(8, "lru", clock=clock)
    for number in range(2000):
        clock.now += 1
        serve(pool, chain("a", 4), Request(number, ttl=10**6, pin_until=clock.now + 10**6, priority=3))
    hinted = pool._hinted
    assert max(len(times._heap) for times in (hinted._expiries, hinted._pins, hinted._holds)) < 100


def test_reading() -> None:
    given = {"session": "s", "last": True, "ttl": 600, "priority": 5, "tenant": "t", "pin_until": 1.5}
    hints = read_hints(given)
    assert hints.fields == given and not hints.problems
    assert Request(1, **hints.fields).session == "s"
    assert read_hints(None) == ({}, []) and read_hints({"ttl": None}) == ({}, [])


@pytest.mark.parametrize(
    "given",
    [
        "session",
        ["last"],
        {"last": "yes"},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": True},
        {"priority": 1.5},
        {"priority": 10**9},
        {"session": ""},
        {"session": 5},
        {"tenant": ["t"]},
        {"pin_until": "tomorrow"},
        {"sesion": "s"},
        {1: 2},
    ],
)
def test_malformed_hints_are_told_and_ignored(given: object) -> None:
    hints = read_hints(given)
    assert hints.fields == {} and len(hints.problems) == 1
    assert read_hints({"priority": 3, **(given if isinstance(given, dict) else {})}).fields.get("priority", 3) == 3


def deep(depth: int) -> object:
    value: object = "end"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [10**400, -(10**5000), deep(100_000), "\ud800", ["x" * 200] * 1000], ids="hxdse")
@pytest.mark.parametrize("name", ["session", "last", "ttl", "priority", "tenant", "pin_until", "unknown", None])
def test_whatever_is_given_is_told_in_few_words(name: str | None, value: object) -> None:
    hints = read_hints(value if name is None else {name: value})
    assert hints.fields == {} and len(hints.problems) == 1
    assert len(hints.problems[0].encode()) < 300


def test_fields_are_too_many_to_be_looked_at() -> None:
    hints = read_hints({"session": "s", **{f"field {number}": number for number in range(100)}})
    assert hints.fields == {} and len(hints.problems) == 1 and "more than 32 fields" in hints.problems[0]


def test_the_longest_times_are_times() -> None:
    pool = BlockPool(4, "lru")
    serve(pool, [1, 2], Request(1, **read_hints({"ttl": 1.7e308, "pin_until": 10**308}).fields))
    assert serve(pool, [3, 4, 5], Request(2)) == [2]


def test_ends_told_in_the_simulator() -> None:
    asked = [[1, 2, 3], [1, 2, 4, 5], [7, 8], [1, 2, 4, 6], [7, 9, 10]]
    requests = [TraceRequest(keys=keys) for keys in asked]
    assert conversations(requests) == ["#0", "#0", "#2", "#0", "#4"]
    assert [request.last for request in tell_ends(requests)] == [False, False, True, True, True]
    assert not any(request.last for request in tell_ends(requests, 0.0))
    assert parse_session_end("session-end=0.5") == 0.5
    for wrong in ("session-end", "session-end=2", "ends=1", "session-end=x"):
        with pytest.raises(ConfigError, match=r"session-end=0\.5"):
            parse_session_end(wrong)


@given(
    runs=st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=8, unique=True), st.sampled_from(["one", "two"])), max_size=40
    )
)
@settings(deadline=None)
def test_who_has_had_a_block_is_known_for_some_blocks(runs: list[tuple[list[int], str]]) -> None:
    conversations, naive = Conversations(12), OrderedDict[int, str]()
    for run, name in runs:
        shared = max((at for at, key in enumerate(run, 1) if naive.get(key, name) != name), default=0)
        naive.update(dict.fromkeys(run, name))
        while len(naive) > 12:
            naive.popitem(last=False)
        assert conversations.note(run, name) == shared


def test_blocks_of_one_hash_are_one_to_conversations() -> None:
    assert hash(-1) == hash(-2)
    conversations = Conversations(2)
    for run in ([-1, -2], [5], [6], [7]):
        assert conversations.note(run, "one") == 0
    assert conversations.note([6, 7], "two") == 2
