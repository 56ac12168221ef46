"""KV events: a subscriber that hears nothing else rebuilds what lies in host memory and in each tier."""

import random
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, ReqContext, ScheduleEndContext, make_offload_key

from kvloft.keys import Namespace
from kvloft.tiers.base import Presence, Tier
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.memory import MemoryTier
from kvloft.tiers.wrappers import Faulty, Wrapper
from kvloft.transfer.limits import CascadeConfig
from kvloft.transfer.residency import Residency
from kvloft.vllm import TieredManager
from kvloft.vllm.compat import RELEASE

BLOCK = 4096
SLOTS = 12
KEYS = [make_offload_key(f"block {at}".encode().ljust(32, b"."), 0) for at in range(64)]


class Index:
    """What a subscriber knows: the blocks of each place. It refuses to hear twice the same."""

    def __init__(self) -> None:
        self.places: dict[tuple[Medium, str | None], set[Any]] = defaultdict(set)
        self.heard = 0

    def hear(self, events: Iterable[Any]) -> None:
        for event in events:
            if getattr(event, "metadata_only", False):
                continue
            place = self.places[event.medium, event.ownership]
            assert (event.medium is Medium.CPU) == (event.ownership is None)
            assert len(set(event.keys)) == len(event.keys)
            if event.removed:
                assert place.issuperset(event.keys), "told that something left that was not there"
                place.difference_update(event.keys)
            else:
                assert place.isdisjoint(event.keys), "told twice that something is there"
                place.update(event.keys)
            self.heard += 1


class Shy(Wrapper):
    """A tier that reports no changes, as shared stores do not."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier)
        self.reports_changes, self.remote = False, True


class Engine:
    """Requests of a scheduler, at random."""

    def __init__(self, tiers: list[Tier], seed: int, keep: bool = False, **bounds: Any) -> None:
        self.arena = np.zeros((SLOTS, BLOCK), np.uint8)
        self.dice = random.Random(seed)
        self.manager = TieredManager(
            tiers,
            lambda slot: memoryview(self.arena[slot]),
            config=CascadeConfig(prefill_tokens_per_second=1.0, **bounds),
            keep_after_reset=keep,
            num_chunks=SLOTS,
            enable_events=True,
        )
        self.index = Index()
        self.count = 0

    def request(self) -> None:
        """Look, load what is there, store the rest; some stores fail, some requests give up before."""
        self.count += 1
        head, tail = self.dice.randrange(5), self.dice.randrange(5, 60)
        keys = [*KEYS[:head], *KEYS[tail : tail + self.dice.randrange(1, 5)]]
        context = ReqContext(req_id=f"request {self.count}")
        self.manager.on_new_request(context)
        hits = 0
        for _ in range(self.dice.choice([1, 50])):
            found = [self.manager.lookup(key, context) for key in keys]
            hits = next((at for at, answer in enumerate(found) if answer is not LookupResult.HIT), len(keys))
            if LookupResult.HIT_PENDING not in found[hits : hits + 1]:
                break
            self.step()
        if hits:
            self.manager.prepare_load(keys[:hits], context)
            self.manager.complete_load(set(keys[:hits]), context)
        output = self.manager.prepare_store(keys, context)
        if output is not None and output.keys_to_store:
            for key, slot in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
                self.arena[slot] = key[6]
            if self.dice.random() < 0.05:
                self.reset()
            self.manager.complete_store(set(output.keys_to_store), context, success=self.dice.random() < 0.9)
        self.manager.on_request_finished(context)

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))
        self.index.hear(self.manager.take_events())

    def reset(self) -> None:
        self.manager.reset_cache()
        if RELEASE >= (0, 33):
            self.manager.on_reset_flushed()
        if self.dice.random() < 0.5:
            self.index.hear(self.manager.take_events())

    def settle(self) -> None:
        until = time.monotonic() + 30
        while self.manager.has_pending_work() and time.monotonic() < until:
            self.step()
        for tier in self.manager._tiers:
            tier.drain(10)
        self.step()

    def check(self) -> None:
        """The index against what can be found."""
        context = ReqContext(req_id="nobody")
        host = {key for key in KEYS if super(TieredManager, self.manager).lookup(key, context) is LookupResult.HIT}
        assert self.index.places[Medium.CPU, None] == host
        for tier in self.manager._tiers:
            there = {key for key, at in zip(KEYS, tier.lookup(KEYS), strict=True) if at is Presence.HIT}
            self.index.hear(self.manager.take_events())
            assert self.index.places[Medium.STORAGE, tier.name] == there


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("admission", ["everything", "second-use", "write-back"])
def test_an_index_of_two_tiers_is_exact(admission: str, keep: bool) -> None:
    small, large = MemoryTier(8 * BLOCK, name="small"), MemoryTier(30 * BLOCK, name="large")
    engine = Engine([Faulty(small, store=0.1, load=0.1), large], seed=len(admission), keep=keep, admission=admission)
    for _ in range(8):
        for _ in range(60):
            engine.request()
            engine.step()
        engine.settle()
        engine.check()
    assert engine.index.heard > 300
    assert engine.manager.cascade.stats().tiers["small"].tier.counters["evicted"] > 5
    engine.manager.shutdown()


@pytest.mark.parametrize("keep", [False, True])
def test_an_index_of_a_disk_is_exact(tmp_path: Path, keep: bool) -> None:
    """Evictions happen on threads of the tier's own."""
    disk = DiskTier(tmp_path, 28 * (BLOCK + 4096), BLOCK, Namespace(model="events"), tick=0.02)
    engine = Engine([disk], seed=1, keep=keep)
    for _ in range(5):
        for _ in range(60):
            engine.request()
            engine.step()
        engine.settle()
        engine.check()
    assert disk.stats().counters["evicted"] > 0
    engine.manager.shutdown()


def test_what_a_restart_finds_is_told_when_it_is_found(tmp_path: Path) -> None:
    for _ in range(2):
        disk = DiskTier(tmp_path, 1 << 20, BLOCK, Namespace(model="events"))
        engine = Engine([disk], seed=2)
        for _ in range(20):
            engine.request()
            engine.step()
        engine.settle()
        engine.check()
        engine.manager.shutdown()


def test_of_a_shared_store_is_told_what_this_engine_saw() -> None:
    store = MemoryTier(1 << 30, name="store")
    engine = Engine([Shy(store)], seed=3)
    for _ in range(100):
        engine.request()
        engine.step()
    engine.settle()
    engine.check()


class Stale(Shy):
    """It says that it has everything."""

    def lookup(self, keys: Any) -> list[Presence]:
        return [Presence.HIT] * len(keys)


def test_what_a_shared_store_has_lost_is_told_when_a_load_misses_it() -> None:
    store = MemoryTier(name="store")
    engine = Engine([Stale(store)], seed=4, keep=True)
    context = ReqContext(req_id="finds it gone")
    store._store(KEYS[0], memoryview(bytearray(BLOCK)))
    for lost in (False, True):
        if lost:
            store.remove(KEYS[:1])
        engine.manager.reset_cache()
        engine.manager.on_new_request(context)
        while engine.manager.lookup(KEYS[0], context) is LookupResult.HIT_PENDING:
            engine.step()
        engine.manager.on_request_finished(context)
        engine.step()
        assert engine.index.places[Medium.STORAGE, "store"] == (set() if lost else {KEYS[0]})


def test_events_name_tier_and_place(tmp_path: Path) -> None:
    near, far = MemoryTier(1 << 20, name="near"), Shy(MemoryTier(1 << 20, name="far"))
    engine = Engine([near, far], seed=4)
    events: list[Any] = []
    engine.index.hear = lambda told: events.extend(told)  # type: ignore[method-assign]
    engine.request()
    engine.settle()
    below = {event.ownership: event for event in events if event.medium is Medium.STORAGE}
    assert (below["near"].locality, below["near"].removal_expected) == (Locality.LOCAL, True)
    assert (below["far"].locality, below["far"].removal_expected) == (Locality.REMOTE, False)
    assert events[0].medium is Medium.CPU, "what is stored is told before it has gone down"


def test_nothing_is_kept_if_nobody_listens() -> None:
    tier = MemoryTier(1 << 20)
    manager = TieredManager([tier], lambda slot: memoryview(bytearray(BLOCK)), num_chunks=SLOTS)
    assert list(manager.take_events()) == []
    assert tier._changes is None
    assert not any(isinstance(observer, Residency) for observer in manager.cascade._links[0].observers)
