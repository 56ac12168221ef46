"""The compiled tables where keys misbehave: errors change nothing, and nothing leaks or crashes."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvloft._table import Homes, Index, Queues, ascending, distinct, exchange, untracked


class Wild:
    """A key that runs code when it is hashed or compared."""

    def __init__(self, on_hash: Callable[[], object] = int, on_eq: Callable[[], object] = int) -> None:
        self.on_hash, self.on_eq = on_hash, on_eq

    def __hash__(self) -> int:
        self.on_hash()
        return 7

    def __eq__(self, other: object) -> bool:
        self.on_eq()
        return self is other


class Dying(str):
    """A key that runs code when the last reference to it is dropped."""

    on_drop: Callable[[], object]

    def __del__(self) -> None:
        self.on_drop()


def fail() -> None:
    raise ZeroDivisionError


def make(kind: str) -> tuple[Index | Queues, dict[str, Callable[[list[object]], object]]]:
    """A table with the keys "a" and 7, and its calls."""
    if kind == "index":
        index = Index(8)
        index.take(["a", 7])
        index.land(["a", 7])
        return index, {name: getattr(index, name) for name in ("take", "land", "drop", "pin", "unpin", "slots", "absent")}
    queues = Queues(0, 2)
    queues.add(["a", 7])
    calls = {name: getattr(queues, name) for name in ("add", "touch", "remove", "present")}
    more = {"move": lambda keys: queues.move(keys, 1), "lift": lambda keys: queues.lift(keys, 1)}
    return queues, calls | more | {"put_back": lambda keys: queues.put_back(keys, [])}


def state(table: Index | Queues) -> object:
    if isinstance(table, Queues):
        return [table.keys(queue) for queue in (0, 1)]
    return (table.present(["a", 7, "b", "c"]), table.free, table.writing, table.pinned, list(table.slots(["a", 7])))


@pytest.mark.parametrize("kind", ["index", "queues"])
@pytest.mark.parametrize("wild", [Wild(on_hash=fail), Wild(on_eq=fail), []], ids=["hash", "eq", "unhashable"])
def test_a_batch_with_a_bad_key_changes_nothing(kind: str, wild: object) -> None:
    table, calls = make(kind)
    before = state(table)
    for name, call in calls.items():
        first = ["b", "c"] if name in ("take", "add") else ["a"]
        with pytest.raises((ZeroDivisionError, TypeError)):
            call([*first, wild, "d"])
        assert state(table) == before, name
    with pytest.raises((ZeroDivisionError, TypeError)):
        assert wild in table


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_keys_cannot_change_the_table_that_looks_at_them(kind: str) -> None:
    table, calls = make(kind)
    before = state(table)
    for call in calls.values():
        for change in (lambda: calls.get("take", calls.get("add"))(["new"]), table.clear):
            with pytest.raises(RuntimeError, match="cannot be changed"):
                call([Wild(on_eq=change)])
            assert state(table) == before
    probe = Wild(on_eq=lambda: table.clear())
    with pytest.raises(RuntimeError, match="cannot be changed"):
        assert probe in table
    assert state(table) == before


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_keys_may_look_into_the_table_that_looks_at_them(kind: str) -> None:
    table, _ = make(kind)
    seen = []
    assert Wild(on_eq=lambda: seen.append("a" in table)) not in table
    assert seen == [True]


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_a_table_that_another_thread_looks_into_is_refused(kind: str) -> None:
    table, calls = make(kind)
    before = state(table)
    looking, done = threading.Event(), threading.Event()

    def wait() -> None:
        looking.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(calls["absent" if kind == "index" else "present"], ["a", Wild(on_eq=wait), 7])
        assert looking.wait(60)
        asks = (lambda: "a" in table, table.clear, table.__copy__, table.busy if isinstance(table, Index) else table.keys)
        for call in (*(partial(call, ["a"]) for call in calls.values()), *asks):
            with pytest.raises(RuntimeError, match=r"another thread|cannot be changed or copied"):
                call()
        done.set()
        assert len(found.result()) == (1 if kind == "index" else 2)
    assert state(table) == before
    assert "a" in table and len(table.__copy__()) == 2


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_a_table_in_the_middle_of_a_change_is_not_copied(kind: str) -> None:
    table, calls = make(kind)
    before = state(table)
    with pytest.raises(RuntimeError, match="copied"):
        calls["take" if kind == "index" else "add"](["b", Wild(), Wild(on_eq=table.__copy__)])
    assert state(table) == before


def test_blocks_that_are_dropped_while_slots_are_away_see_an_empty_index() -> None:
    index = Index(64)
    seen: list[object] = []
    keys = [Dying(f"{number}") for number in range(50)]
    for key in keys:
        key.on_drop = lambda: seen.append((len(index), [*index], index.busy()))
    index.take(keys)
    del key, keys
    index.clear([60])
    assert seen == [(0, [], [])] * 50
    assert (index.free, index.away) == (63, 1)


@pytest.mark.parametrize("table", [Queues(8), Homes(8)], ids=["queues", "homes"])
def test_keys_that_are_equal_when_found_are_not_added_when_they_differ_later(table: Queues | Homes) -> None:
    equal = 0

    class Fickle:
        def __hash__(self) -> int:
            return 5

        def __eq__(self, other: object) -> bool:
            nonlocal equal
            equal -= 1
            return equal >= 0

    put = table.add if isinstance(table, Queues) else lambda keys: table.put(keys, 3)
    put([Fickle() for _ in range(8)])
    for _ in range(100):
        equal = 50
        put([Fickle() for _ in range(50)])
    assert len(table) == 8


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_a_list_that_changes_under_way_is_refused(kind: str) -> None:
    _, calls = make(kind)
    for call in calls.values():
        keys: list[object] = ["x"] * 100
        keys[3] = Wild(on_hash=keys.clear)
        with pytest.raises(RuntimeError, match="batch of keys has changed"):
            call(keys)


@pytest.mark.parametrize("kind", ["index", "queues"])
def test_keys_that_are_dropped_see_a_table_that_is_whole(kind: str) -> None:
    table, calls = make(kind)
    seen: list[object] = []

    def look() -> None:
        try:
            table.clear()
        except RuntimeError:
            seen.append(("a" in table, "x" in table, len(table)))

    keys = [Dying("x"), Dying("y")]
    for key in keys:
        key.on_drop = look
    calls["take" if kind == "index" else "add"](keys)
    del key, keys
    calls["drop" if kind == "index" else "remove"](["x"])
    assert seen == [(True, False, 3)]
    table.clear()
    assert seen[1:] == [(False, False, 0)]


@pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may map")
def test_where_memory_runs_out_nothing_has_changed() -> None:
    program = """
import resource
from kvloft._table import Homes, Index, Queues
queues, homes = Queues(0, 2), Homes()
keys = [b"%036d" % number for number in range(300_000)]
queues.add(keys[:100_000])
homes.put(keys[:100_000], 1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), resource.RLIM_INFINITY))
for call in (lambda: Index(1 << 24), lambda: Homes(1 << 24, touch=False), queues.__copy__, homes.__copy__,
             lambda: queues.add(keys), lambda: homes.put(keys, 2)):
    try:
        call()
    except MemoryError:
        continue
    raise SystemExit("there was memory")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert queues.keys() == keys[:100_000] and homes.runs(keys[:100_000]) == [(1, 100_000)] and len(homes) == 100_000
queues.add(keys), homes.put(keys, 2)
assert queues.keys() == keys and homes.runs(keys) == [(2, 300_000)]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_leaks() -> None:
    keys = [object() for _ in range(300)]
    before = [sys.getrefcount(key) for key in keys]
    for use in (use_index, use_queues):
        use(keys, before[0])
    gc.collect()
    assert [sys.getrefcount(key) for key in keys] == before


def use_index(keys: list[object], before: int) -> None:
    index = Index(300)
    index.take(keys)
    index.land(keys)
    index.pin(keys)
    assert sys.getrefcount(keys[0]) == before + 1
    with pytest.raises(ValueError, match="1 slots are wanted and 0 are free"):
        index.take([1])
    index.drop(keys[:100])
    with pytest.raises(KeyError):
        index.slots(keys)
    with pytest.raises(ValueError, match="is in already"):
        index.take([*keys[:50], keys[200]])
    index.drop(keys[150:200], away=True)
    index.busy(), index.ready(keys), index.leading(keys), index.__copy__()
    answer = index.answers(*keys[:3])
    assert (answer(keys[0]), answer(keys[120])) == (keys[0], keys[2])
    with pytest.raises(TypeError, match="give a key"):
        answer()


def use_queues(keys: list[object], before: int) -> None:
    queues = Queues(10, 2)
    queues.add(keys)
    queues.move(keys[:100], 1)
    queues.touch(keys)
    assert sys.getrefcount(keys[0]) == before + 1
    queues.oldest(100, set(keys[:10])), queues.keys(1), queues.present(keys, 1), queues.__copy__()
    gaps = queues.lift(keys[:120], 1)
    queues.put_back(keys[:60], gaps[:60])
    queues.remove(keys[:150])
    queues.close(gaps[60:90])
    with pytest.raises(KeyError):
        queues.remove(keys)
    queues.clear()
    queues.add(keys)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Index(-1),
        lambda: Index(2**31),
        lambda: Queues(-1),
        lambda: Queues(0, 0),
        lambda: Queues(0, 5),
        lambda: Queues().add([], 1),
        lambda: Queues().oldest(1, (), -1),
        lambda: Queues().present([], -1),
        lambda: Queues().lift([], 1),
        lambda: Queues(4).close([0]),
        lambda: Queues(4).close([1]),
        lambda: Queues(4).close([-1]),
        lambda: Queues(4).put_back([], [5]),
        lambda: Index(3).reclaim([3]),
        lambda: Index(3).clear([-1]),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("call", [lambda: Queues().add(7), lambda: Index(1).take(None), lambda: Index(1).reclaim(["a"])])  # type: ignore[arg-type, list-item]
def test_what_is_no_batch_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


def test_slots_come_in_order_and_a_chain_that_left_tail_first_is_replaced_in_order() -> None:
    index = Index(6)
    assert list(index.take("abcdef")) == [0, 1, 2, 3, 4, 5]
    index.drop("dcb")
    assert list(index.take("xyz")) == [1, 2, 3]


def test_each_key_once_in_the_order_of_its_first_place() -> None:
    assert distinct(iter("abcab")) == ["a", "b", "c"]
    assert distinct(["x", 1, True, 1.0, 2**61 - 1, 0]) == ["x", 1, 2**61 - 1, 0], "equal hashes, equal or not"
    given = ["a", "b"]
    assert distinct(given) == given and distinct(given) is not given
    with pytest.raises(TypeError, match="unhashable"):
        distinct(["a", []])


def test_a_tuple_that_needs_no_collecting() -> None:
    assert untracked(iter([b"a", "b", 3])) == (b"a", "b", 3) and untracked([]) == ()
    assert not gc.is_tracked(untracked([b"a", "b", 3]))
    assert gc.is_tracked(untracked([b"a", []]))
    with pytest.raises(TypeError):
        untracked(7)  # type: ignore[arg-type]


def test_whether_values_ascend() -> None:
    assert ascending([]) and ascending([3]) and ascending([-1, 0, 0, 7])
    assert not ascending([1, 0]) and not ascending([1, None, 2]) and not ascending([None])
    for wrong in (["a"], [2**63], 7, map(fail_at, [1])):
        with pytest.raises((TypeError, OverflowError, ZeroDivisionError)):
            ascending(wrong)


def fail_at(value: int) -> int:
    return value // 0


def numbers(*values: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.array(values, np.int64)


def test_exchange_leaves_what_it_finds() -> None:
    table, values = numbers(10, 11, 12), numbers(1, 2, 3)
    exchange(table, numbers(2, 0, 2), values)
    assert (table.tolist(), values.tolist()) == ([2, 11, 3], [12, 10, 1])


@pytest.mark.parametrize("place", [-1, 3])
def test_exchange_beyond_the_table_changes_nothing(place: int) -> None:
    table, values = numbers(10, 11, 12), numbers(1, 2)
    with pytest.raises(IndexError, match=f"{place} is no place from 0 to 2"):
        exchange(table, numbers(0, place), values)
    assert (table.tolist(), values.tolist()) == ([10, 11, 12], [1, 2])


def test_exchange_refuses_other_arrays() -> None:
    frozen = numbers(0)
    frozen.flags.writeable = False
    exchange(numbers(0), frozen, numbers(0))
    for table, places, values in [
        (numbers(0), numbers(0, 0), numbers(0)),
        (np.zeros(1, np.int32), numbers(0), numbers(0)),
        (np.zeros(1), numbers(0), numbers(0)),
        (np.zeros((1, 1), np.int64), numbers(0), numbers(0)),
        (np.zeros(2, np.int64)[::-1], numbers(0), numbers(0)),
        (frozen, numbers(0), numbers(0)),
    ]:
        with pytest.raises((ValueError, BufferError)):
            exchange(table, places, values)
