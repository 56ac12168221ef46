"""kvloft's `DiskTier` as a secondary tier of vLLM's own `TieringOffloadingManager`, on the CPU platform."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext, ScheduleEndContext, TierFilter, make_offload_key
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvloft.errors import ConfigError
from kvloft.tiers.base import Presence
from kvloft.tiers.wrappers import Faulty
from kvloft.vllm.compat import RELEASE
from offloading import offloading_config

CHUNK = 8192
CHUNKS = 8
_engines = itertools.count()


class Stock:
    """A stock tiering manager with one DiskTier below it, and what an engine does with it."""

    def __init__(self, path: Path, events: bool = False, **settings: Any) -> None:
        tier = {"type": "DiskTier", "module_path": "kvloft.vllm", "path": str(path), "capacity": "4MiB", "namespace": "test"}
        self.spec = TieringOffloadingSpec(
            offloading_config(
                {"cpu_bytes_to_use": CHUNKS * CHUNK, "secondary_tiers": [{**tier, **settings}]},
                CHUNK,
                events=events,
                engine=f"kvloft-test-{time.time_ns()}-{next(_engines)}",
            )
        )
        self.manager: Any = self.spec.get_manager()
        self.rows = np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)
        self.disk = self.manager.secondary_tiers[0]

    def store(self, name: str, keys: list[Any]) -> None:
        context = self.begin(name)
        output = self.manager.prepare_store(keys, context)
        assert output is not None
        for key, chunk in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
            self.rows[chunk] = content(key)
        self.manager.complete_store(output.keys_to_store, context)
        self.manager.on_request_finished(context)
        self.settle()

    def load(self, name: str, keys: list[Any], wanted: TierFilter = TierFilter.ALL) -> int:
        """How many leading chunks were loaded, each with the right bytes."""
        context = self.begin(name, wanted)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = [self.manager.lookup(key, context) for key in keys]
            hits = next((at for at, result in enumerate(found) if result is LookupResult.MISS), len(keys))
            if all(result is LookupResult.HIT for result in found[:hits]):
                break
            self.step()
        spec = self.manager.prepare_load(keys[:hits], context)
        for key, chunk in zip(keys, spec.block_ids, strict=False):
            assert (self.rows[chunk] == content(key)).all(), f"{key!r} has wrong bytes"
        self.manager.complete_load(keys[:hits], context)
        self.manager.on_request_finished(context)
        return hits

    def begin(self, name: str, wanted: TierFilter = TierFilter.ALL) -> ReqContext:
        context = ReqContext(req_id=name, load_tier_filter=wanted)
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext([], []))
        time.sleep(0.002)

    def settle(self) -> None:
        until = time.monotonic() + 30
        while self.manager.has_pending_work() and time.monotonic() < until:
            self.step()

    def reset(self) -> None:
        self.manager.reset_cache()
        if RELEASE >= (0, 33):
            self.manager.on_reset_flushed()

    def close(self) -> None:
        self.rows = None
        self.disk._rows = None
        self.manager.shutdown()


def keys_of(name: str, n: int) -> list[Any]:
    return [make_offload_key(f"{name}-{at}".encode().ljust(32, b"."), 0) for at in range(n)]


def content(key: bytes) -> np.ndarray:
    return np.random.default_rng(list(key)).integers(0, 256, CHUNK, dtype=np.uint8)


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[Any]:
    made: list[Stock] = []

    def make(**settings: Any) -> Stock:
        made.append(Stock(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("after", ["forget", "keep"])
def test_events_tell_what_is_on_disk(stock: Any, after: str) -> None:
    one = stock(events=True, capacity="192KiB", after_reset=after)
    there: set[Any] = set()

    def hear() -> None:
        for event in one.manager.take_events():
            if event.ownership == "DiskTier" and event.medium is Medium.STORAGE:
                assert event.removal_expected
                assert there.issuperset(event.keys) if event.removed else there.isdisjoint(event.keys)
                (there.difference_update if event.removed else there.update)(event.keys)

    keys = [key for name in "abcdef" for key in keys_of(name, 6)]
    for name in "abcdef":
        one.store(name, keys_of(name, 6))
        hear()
    one.disk.tier.drain()
    hear()
    assert one.disk.tier.stats().counters["evicted"] > 0
    found = {key for key, at in zip(keys, one.disk.tier.lookup(keys), strict=True) if at is Presence.HIT}
    assert there == found and len(found) > 2
    one.reset()
    hear()
    assert there == (found if after == "keep" else set())


def test_blocks_come_back_from_disk_after_a_restart(stock: Any) -> None:
    first = stock()
    first.store("a", keys_of("a", 6))
    first.store("b", keys_of("b", 8))
    assert first.load("again", keys_of("a", 6)) == 6
    assert first.load("unknown", keys_of("c", 3)) == 0
    second = stock()
    assert second.load("restarted", keys_of("a", 6)) == 6
    assert second.load("b too", keys_of("b", 2)) == 2


def test_a_request_that_allows_no_secondary_tier_gets_none(stock: Any) -> None:
    stock().store("a", keys_of("a", 4))
    assert stock().load("alone", keys_of("a", 4), TierFilter()) == 0


def test_another_namespace_finds_nothing(stock: Any) -> None:
    stock().store("a", keys_of("a", 4))
    assert stock(namespace="other").load("a", keys_of("a", 4)) == 0


def test_a_flipped_byte_is_a_miss(stock: Any, tmp_path: Path) -> None:
    first = stock()
    first.store("a", keys_of("a", 4))
    flipped = 0
    for path in tmp_path.rglob("*"):
        data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
        at = data.find(content(keys_of("a", 4)[2]).tobytes())
        if at >= 0:
            data[at + 77] ^= 4
            path.write_bytes(data)
            flipped += 1
    assert flipped == 1
    again = stock()
    assert again.load("a", keys_of("a", 4)) == 2
    assert again.load("rest", keys_of("a", 4)[3:]) == 1


def test_a_failing_medium_ends_as_a_miss_and_not_in_a_loop(stock: Any) -> None:
    stock().store("a", keys_of("a", 4))
    again = stock()
    again.disk.tier = Faulty(again.disk.tier, load=1.0)
    assert again.load("a", keys_of("a", 4)) == 0
    again.disk.tier.load = 0.0
    assert again.load("shunned", keys_of("a", 4)) == 0
    again.disk._shunned.clear()
    assert again.load("healed", keys_of("a", 4)) == 4


def test_capacity_holds(stock: Any, tmp_path: Path) -> None:
    small = stock(capacity="512KiB")
    for at in range(20):
        small.store(f"r{at}", keys_of(f"r{at}", 8))
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*")) <= 512 << 10
    assert small.disk.tier.stats().counters["evicted"] > 0


def test_reset_forgets_the_disk_or_keeps_it(stock: Any) -> None:
    one = stock()
    one.store("a", keys_of("a", 4))
    one.reset()
    assert one.load("after", keys_of("a", 4)) == 0
    two = stock(after_reset="keep")
    assert two.load("before", keys_of("a", 4)) == 4
    two.reset()
    assert two.load("after", keys_of("a", 4)) == 4
    with pytest.raises(ConfigError, match="after_reset: 'burn' is neither"):
        stock(after_reset="burn")


def test_metrics_have_definitions(stock: Any) -> None:
    one = stock()
    one.store("a", keys_of("a", 4))
    names = set(one.disk.get_stats().data["data"])
    assert names
    assert names <= set(one.disk.build_metric_definitions({}))


def test_wrong_settings_say_what_would_be_right(stock: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        stock(capacity="lots", treads=3)
    assert len(caught.value.problems) == 2
    assert "did you mean threads?" in str(caught.value)
    with pytest.raises(ConfigError, match="the engine's configuration is out of reach"):
        stock(namespace="")
