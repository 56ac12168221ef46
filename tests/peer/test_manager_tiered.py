"""`TieredManager` as vLLM's scheduler calls it, over tiers that the test commands."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hostile import HostileTier
from kvloft.errors import ConfigError, TierError
from kvloft.keys import Namespace
from kvloft.tiers.base import Tier
from kvloft.tiers.disk import DiskTier
from kvloft.transfer.limits import CascadeConfig
from kvloft.vllm import KvloftSpec, TieredManager
from kvloft.vllm.compat import RELEASE
from offloading import offloading_config
from sleepy_io import sleepy_io  # noqa: F401

BLOCK = 4096
SLOTS = 16


class Scheduler:
    """Calls a manager as vLLM's scheduler does."""

    def __init__(self, *tiers: Tier, keep_after_reset: bool = False, **bounds: Any) -> None:
        self.arena = np.zeros((SLOTS, BLOCK), np.uint8)
        self.released = self.mapped = 0
        self.manager = TieredManager(
            tiers,
            lambda slot: memoryview(self.arena[slot]),
            self.release,
            CascadeConfig(**bounds),
            keep_after_reset,
            self.map,
            num_chunks=SLOTS,
            cache_policy="lru",
        )

    def release(self) -> None:
        self.released += 1

    def map(self) -> None:
        self.mapped += 1

    def begin(self, name: str, wanted: TierFilter = TierFilter.ALL) -> ReqContext:
        context = ReqContext(req_id=name, load_tier_filter=wanted)
        self.manager.on_new_request(context)
        return context

    def store(self, context: ReqContext, keys: list[Any]) -> None:
        output = self.manager.prepare_store(keys, context)
        assert output is not None
        for key, slot in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
            self.arena[slot] = content(key)
        self.manager.complete_store(set(output.keys_to_store), context)

    def look(self, context: ReqContext, keys: list[Any]) -> list[LookupResult]:
        return [self.manager.lookup(key, context) for key in keys]

    def load(self, context: ReqContext, keys: list[Any]) -> None:
        spec = self.manager.prepare_load(keys, context)
        for key, slot in zip(keys, spec.block_ids, strict=True):
            assert (self.arena[slot] == content(key)).all()
        self.manager.complete_load(set(keys), context)

    def step(self, *scheduled: str) -> None:
        self.manager.on_schedule_end(ScheduleEndContext(scheduled, ()))

    def settle(self) -> None:
        until = time.monotonic() + 30
        while self.manager.has_pending_work() and time.monotonic() < until:
            self.step()
            time.sleep(0.001)


class Shelf(HostileTier):
    """Whole chunks instead of the tiny blocks of the cascade's tests."""

    def put(self, *keys: Any) -> None:
        self.shelf.update((key, content(key).tobytes()) for key in keys)

    def _do(self, job: Any, at: int) -> Any:
        from kvloft.tiers.base import Status

        if job.store:
            self.shelf[job.keys[at]] = bytes(job.buffers[at])
            return Status.OK
        job.buffers[at][:] = self.shelf[job.keys[at]]
        return Status.OK

    def poll(self) -> Any:
        for job in list(self.jobs) if self.auto else []:
            self.answer(job)
        answers, self._answers = self._answers, []
        return answers


def keys_of(name: str, n: int) -> list[Any]:
    return [make_offload_key(f"{name}-{at}".encode().ljust(32, b"."), 0) for at in range(n)]


def content(key: bytes) -> np.ndarray:
    return np.random.default_rng(list(key)).integers(0, 256, BLOCK, dtype=np.uint8)


def test_the_first_store_that_arrives_says_that_all_ranks_have_mapped_host_memory() -> None:
    scheduler = Scheduler(Shelf())
    context = scheduler.begin("r")
    failing = keys_of("a", 1)
    scheduler.manager.prepare_store(failing, context)
    scheduler.manager.complete_store(set(failing), context, success=False)
    assert scheduler.mapped == 0
    for name in "bc":
        scheduler.store(context, keys_of(name, 2))
        assert scheduler.mapped == 1


def test_a_hit_below_is_pending_then_a_hit_and_its_source_is_told() -> None:
    tier = Shelf(auto=False)
    tier.put(*keys_of("a", 3))
    scheduler = Scheduler(tier)
    context = scheduler.begin("r")
    keys = keys_of("a", 4)
    assert scheduler.look(context, keys) == [LookupResult.HIT_PENDING] * 3 + [LookupResult.MISS]
    assert scheduler.manager.has_pending_work()
    scheduler.step()
    assert scheduler.look(context, keys) == [LookupResult.HIT_PENDING] * 3 + [LookupResult.MISS]
    tier.answer(tier.jobs[0])
    scheduler.step()
    assert scheduler.look(context, keys) == [LookupResult.HIT] * 3 + [LookupResult.MISS]
    scheduler.load(context, keys[:3])
    scheduler.store(context, keys)
    assert [scheduler.manager.get_load_source(key, context) for key in keys] == [CacheHitSource.DISK] * 3 + [
        CacheHitSource.HOST
    ]
    tier.auto = True
    scheduler.settle()
    assert set(tier.shelf) == set(keys)
    scheduler.manager.on_request_finished(context)
    assert scheduler.manager.pool.stats().pinned == 0


def test_what_comes_from_a_remote_store_is_not_called_disk() -> None:
    far = Shelf("far")
    far.remote = True
    far.put(*keys_of("a", 1))
    scheduler = Scheduler(far)
    context = scheduler.begin("r")
    while scheduler.look(context, keys_of("a", 1)) != [LookupResult.HIT]:
        scheduler.step()
    scheduler.load(context, keys_of("a", 1))
    assert scheduler.manager.get_load_source(keys_of("a", 1)[0], context) is CacheHitSource.EXTERNAL_UNSPECIFIED


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (TierFilter(), []),
        (TierFilter((TierMatcher(Medium.CPU),)), []),
        (TierFilter((TierMatcher(Medium.STORAGE),)), ["near", "far"]),
        (TierFilter((TierMatcher(Medium.STORAGE, Locality.REMOTE),)), ["far"]),
        (TierFilter((TierMatcher(None, Locality.LOCAL),)), ["near"]),
        (TierFilter.ALL, ["near", "far"]),
    ],
)
def test_the_tiers_that_a_request_allows(wanted: TierFilter, found: list[str]) -> None:
    near, far = Shelf("near"), Shelf("far")
    far.remote = True
    near.put(*keys_of("near", 1))
    far.put(*keys_of("far", 1))
    scheduler = Scheduler(near, far)
    context = scheduler.begin("r", wanted)
    results = {name: scheduler.look(context, keys_of(name, 1))[0] for name in ("near", "far")}
    assert [name for name, result in results.items() if result is LookupResult.HIT_PENDING] == found


def test_a_request_that_is_scheduled_keeps_nothing_any_more() -> None:
    tier = Shelf()
    tier.put(*keys_of("a", 3))
    scheduler = Scheduler(tier)
    context = scheduler.begin("r")
    scheduler.look(context, keys_of("a", 3))
    scheduler.step()
    scheduler.step()
    assert scheduler.manager.cascade.stats().held == 3
    scheduler.step("r")
    assert scheduler.manager.cascade.stats().held == 0
    assert scheduler.manager.pool.stats().pinned == 0


def test_a_reset_forgets_what_is_below_for_the_weights_may_have_changed(tmp_path: Path) -> None:
    """What was stored before is found by no one after; what is stored after, by no one who starts with the old weights."""

    def disk() -> DiskTier:
        return DiskTier(tmp_path, 1 << 23, BLOCK, Namespace(model="m"), tick=0.05)

    scheduler = Scheduler(disk())
    context = scheduler.begin("r")
    scheduler.store(context, keys_of("a", 4))
    scheduler.settle()
    scheduler.manager.reset_cache()
    assert scheduler.look(context, keys_of("a", 4)) == [LookupResult.MISS] * 4
    scheduler.store(context, [*keys_of("a", 2), *keys_of("b", 2)])
    scheduler.settle()
    for at in range(4):
        scheduler.store(scheduler.begin(f"fills {at}"), keys_of(f"f{at}", 4))
    assert scheduler.look(scheduler.begin("s"), keys_of("b", 2)) == [LookupResult.HIT_PENDING] * 2
    scheduler.manager.shutdown()
    scheduler = Scheduler(disk())
    until = time.monotonic() + 30
    found: list[LookupResult] = []
    # While the tier reads its index, a request may be told of a miss, and then stays with it; the next one asks anew.
    while found != [LookupResult.HIT] * 4 and time.monotonic() < until:
        if LookupResult.HIT_PENDING not in found:
            context = scheduler.begin(f"r{time.monotonic()}")
        scheduler.step()
        found = scheduler.look(context, keys_of("a", 4))
    assert found == [LookupResult.HIT] * 4
    assert scheduler.look(context, keys_of("b", 2)) == [LookupResult.MISS] * 2
    scheduler.manager.shutdown()


def test_a_reset_can_keep_what_is_below_and_live_requests_go_on() -> None:
    tier = Shelf()
    scheduler = Scheduler(tier, keep_after_reset=True)
    context = scheduler.begin("r")
    scheduler.store(context, keys_of("a", 4))
    scheduler.settle()
    scheduler.manager.reset_cache()
    assert scheduler.look(context, keys_of("a", 4)) == [LookupResult.HIT_PENDING] * 4
    scheduler.settle()
    assert scheduler.look(context, keys_of("a", 4)) == [LookupResult.HIT] * 4
    scheduler.load(context, keys_of("a", 4))


def test_slots_of_the_worker_rest_after_a_reset() -> None:
    """Its transfers go on for a while; what comes up from below must not lie in their way."""
    tier = Shelf()
    scheduler = Scheduler(tier)
    context = scheduler.begin("r")
    scheduler.store(context, keys_of("a", 4))
    writing = scheduler.manager.prepare_store(keys_of("b", 3), context)
    reading = scheduler.manager.prepare_load(keys_of("a", 2), context)
    assert writing is not None
    busy = {*writing.store_spec.block_ids.tolist(), *reading.block_ids.tolist()}
    scheduler.manager.reset_cache()
    output = scheduler.manager.prepare_store(keys_of("c", SLOTS - 5), context)
    assert output is not None and busy.isdisjoint(output.store_spec.block_ids.tolist())
    assert scheduler.manager.prepare_store(keys_of("d", 1), context) is None
    scheduler.step()
    assert scheduler.manager.pool.free == 0
    for _ in range(16):
        scheduler.step()
    if RELEASE >= (0, 33):
        assert scheduler.manager.pool.free == 0
        scheduler.manager.on_reset_flushed()
    assert scheduler.manager.pool.free == 5


def test_prefill_rate_is_measured_from_steps() -> None:
    scheduler = Scheduler(Shelf(), block_tokens=16)
    context = scheduler.begin("r")
    scheduler.step()
    scheduler.store(context, keys_of("a", 4))
    time.sleep(0.05)
    scheduler.step()
    rate = scheduler.manager.cascade.stats().prefill_tokens_per_second
    assert rate is not None and 0 < rate < 64 / 0.05


def test_a_configured_prefill_rate_is_kept() -> None:
    scheduler = Scheduler(Shelf(), prefill_tokens_per_second=123.0)
    scheduler.step()
    scheduler.store(scheduler.begin("r"), keys_of("a", 4))
    scheduler.step()
    assert scheduler.manager.cascade.stats().prefill_tokens_per_second == 123.0


def test_every_metric_has_a_definition() -> None:
    tier = Shelf()
    tier.put(*keys_of("b", 2))
    scheduler = Scheduler(tier, prefill_tokens_per_second=5.0)
    context = scheduler.begin("r")
    scheduler.store(context, keys_of("a", 4))
    scheduler.look(context, keys_of("b", 2))
    scheduler.settle()
    reported = set(scheduler.manager.get_stats().data["data"])
    defined = set(KvloftSpec.build_metric_definitions({"tiers": [{}]}))
    assert reported <= defined
    assert {"vllm:kvloft_tier_transfers", "vllm:kvloft_tier_size", "vllm:kvloft_cascade"} <= reported
    assert not any("tier" in name or "cascade" in name for name in KvloftSpec.build_metric_definitions({}))


def test_shutdown_lets_go_of_memory_only_when_no_tier_uses_it() -> None:
    tier = Shelf()
    scheduler = Scheduler(tier)
    scheduler.store(scheduler.begin("r"), keys_of("a", 4))
    scheduler.manager.shutdown()
    assert scheduler.released == 1 and tier.closed
    hanging = Shelf(auto=False)
    hanging.hangs = True
    scheduler = Scheduler(hanging, close_seconds=0.05)
    scheduler.store(scheduler.begin("r"), keys_of("a", 4))
    scheduler.manager.shutdown()
    assert scheduler.released == 0


@pytest.mark.parametrize("keep", [True, False])
def test_no_call_of_the_scheduler_does_io(tmp_path: Path, io: list[tuple[str, int]], keep: bool) -> None:
    disk = DiskTier(tmp_path, 1 << 23, BLOCK, Namespace(model="m"), tick=0.05)
    scheduler = Scheduler(disk, keep_after_reset=keep)
    io.clear()
    for name in ("a", "b", "c"):
        context = scheduler.begin(name)
        scheduler.store(context, keys_of(name, 8))
        scheduler.manager.on_request_finished(context)
        scheduler.settle()
    context = scheduler.begin("reader")
    until = time.monotonic() + 30
    while LookupResult.HIT_PENDING in (results := scheduler.look(context, keys_of("a", 8))) and time.monotonic() < until:
        scheduler.step()
    assert results == [LookupResult.HIT] * 8
    scheduler.load(context, keys_of("a", 8))
    scheduler.manager.reset_cache()
    scheduler.manager.get_stats()
    scheduler.manager.on_request_finished(context)
    here = threading.get_ident()
    assert {what for what, thread in io if thread == here} == set()
    assert {"Files.read_slots", "Files.write_slots"} <= {what for what, _ in io}
    scheduler.manager.shutdown()
    assert scheduler.released == 1


def make_spec(**settings: Any) -> Any:
    return KvloftSpec(
        offloading_config({"cpu_bytes_to_use": SLOTS * BLOCK, **settings}, BLOCK, engine=f"kvloft-{time.time_ns()}")
    )


def test_a_spec_with_tiers_makes_this_manager(tmp_path: Path) -> None:
    disk = {"type": "disk", "path": str(tmp_path), "capacity": "1MiB", "namespace": "test"}
    spec = make_spec(tiers=[disk], tiers_after_reset="keep", cascade={"pending_seconds": 3.0, "admission": "second-use"})
    manager = spec.get_manager()
    assert isinstance(manager, TieredManager)
    assert manager is spec.get_manager()
    assert (manager.cascade.config.pending_seconds, manager.cascade.config.block_tokens) == (3.0, 32)
    assert list(manager.cascade.stats().tiers) == ["disk"]
    manager.shutdown()
    assert not isinstance(make_spec().get_manager(), TieredManager)


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    wrong = {"tiers_after_reset": "perhaps", "cascade": {"pendin_seconds": 3, "nothing": 1}, "eviction_policy": "lrv"}
    with pytest.raises(ConfigError) as caught:
        make_spec(tiers=[{"type": "disk", "capacity": "x"}], **wrong)
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    assert 'tiers_after_reset: \'perhaps\' is neither "forget" nor "keep"' in text
    assert "cascade.pendin_seconds: unknown setting; did you mean pending_seconds?" in text
    assert "tiers[0].path: missing" in text
    with pytest.raises(ConfigError, match=r"cascade\.hang_seconds: -1 is not a number greater than 0"):
        make_spec(cascade={"hang_seconds": -1})


def test_a_tier_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    spec = make_spec(tiers=[{"type": "disk", "path": str(tmp_path / "file"), "capacity": "1MiB", "namespace": "test"}])
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(TierError, match="cannot be made a directory of the disk tier"):
        spec.get_manager()
    assert {thread.name for thread in threading.enumerate()} <= before
