"""`KvloftManager` against the installed vLLM: what its protocol asks for beyond the shipped laws."""

import os
from functools import partial
from types import SimpleNamespace

import pytest
import vllm
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventsTracker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics
from vllm.v1.kv_offload.base import LookupResult, OffloadingKVEventsConfig, OffloadPolicy, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import kvloft.vllm
from kvloft.errors import BlockNotReady, ConfigError
from kvloft.policies import BUILTIN, LRU
from kvloft.vllm import metrics
from kvloft.vllm.compat import RELEASE
from kvloft.vllm.manager import KvloftManager
from kvloft.vllm.request import request_of


class Mine(LRU):
    """A policy of somebody else's, given by module path."""

    name = "mine"


def keys_of(*numbers, group=0):
    return [make_offload_key(bytes([number]) * 32, group) for number in numbers]


def store(manager, context, keys, success=True):
    output = manager.prepare_store(keys, context)
    assert output is not None
    manager.complete_store(set(output.keys_to_store), context, success=success)
    return output


def request(manager, name="a", positions=None):
    context = ReqContext(name)
    for key, end in (positions or {}).items():
        context.set_offload_key_position(key, end)
    assert manager.on_new_request(context).policy is OffloadPolicy.CHUNK_LEVEL
    return context


def test_this_is_the_vllm_that_was_asked_for():
    assert vllm.__version__.split("+")[0] == os.environ.get("KVLOFT_PEER", "0.32.0")


# Construction.


def test_it_takes_what_the_stock_manager_takes():
    for name in CPUOffloadingManager.__init__.__annotations__:
        assert name in KvloftManager.__init__.__annotations__
    manager = KvloftManager(4, "arc", None, True, 2, 100)
    assert manager.pool.policy.name == "arc" and manager.pool.capacity == 4


@pytest.mark.parametrize("name", [*BUILTIN, "LRU", "ARC", "ARCvLLM"])
def test_every_policy_runs_here_and_in_the_stock_manager(name):
    ours = KvloftManager(4, name)
    names = ("lru", "arc")
    stock = CPUOffloadingManager(4, name if name not in names else name.upper(), "kvloft.vllm")
    for manager in (ours, stock):
        for number in range(1, 30):
            context = request(manager, str(number))
            store(manager, context, keys_of(number, number % 3 + 100))
            manager.on_request_finished(context)
        assert sum(manager.lookup(key, context) is LookupResult.HIT for key in keys_of(*range(1, 110))) == 4


def test_a_policy_class_can_come_from_elsewhere():
    assert isinstance(KvloftManager(4, "Mine", __name__).pool.policy, Mine)
    assert KvloftManager(4, "ARC", "kvloft.vllm").pool.policy.name == "arc"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_chunks": 0}, "capacity: 0"),
        ({"num_chunks": 4, "cache_policy": "newest"}, "no policy 'newest'.*lru"),
        (
            {"num_chunks": 4, "cache_policy": "LRUCachePolicy", "cache_policy_module_path": LRU.__module__},
            "no kvloft Policy",
        ),
        (
            {
                "num_chunks": 4,
                "cache_policy": "LRUCachePolicy",
                "cache_policy_module_path": "vllm.v1.kv_offload.cpu.policies.lru",
            },
            "written for vLLM's stock manager",
        ),
    ],
)
def test_wrong_settings_are_named(arguments, says):
    with pytest.raises(ConfigError, match=says):
        KvloftManager(**arguments)


def test_the_stock_manager_names_an_unknown_policy():
    with pytest.raises(AttributeError, match="no policy 'Newest'; eviction_policy can be one of: LRU, ARC, ARCvLLM"):
        CPUOffloadingManager(4, "Newest", "kvloft.vllm")


# Requests.


def test_one_context_is_one_request_whatever_its_id():
    manager = KvloftManager(4)
    first, second = request(manager, "same id"), request(manager, "same id")
    assert request_of(first) is request_of(first)
    assert request_of(first).id != request_of(second).id
    manager.prepare_store(keys_of(1), first)
    manager.complete_store(set(keys_of(1)), second)
    assert manager.lookup(keys_of(1)[0], second) is LookupResult.HIT_PENDING


@pytest.mark.parametrize("given", ["kvloft", ["kvloft"], 5, {"kvloft": {"priority": 10**5000}}])
def test_parameters_of_any_kind_leave_a_request_without_hints(given):
    told = request_of(ReqContext("r", kv_transfer_params=given))
    assert (told.session, told.priority) == (None, 0)


def test_the_chain_follows_positions_across_groups():
    """Groups are offered one after the other; the tail of both goes before the head of either."""
    manager = KvloftManager(6, "lru")
    full, window = keys_of(1, 2, 3), keys_of(1, 2, 3, group=1)
    context = request(manager, "a", {key: 16 * at for keys in (full, window) for at, key in enumerate(keys, 1)})
    store(manager, context, [*full, *window])
    manager.on_request_finished(context)
    evicted = store(manager, request(manager, "b"), keys_of(8, 9)).evicted_keys
    assert set(evicted) == {full[2], window[2]}


def test_an_untracked_request_leaves_nothing_behind():
    manager = KvloftManager(4)
    for number in range(100):
        context = request(manager, str(number))
        manager.on_request_finished(context)
    assert not manager.pool._lives


# Load.


def test_specs_are_the_stock_workers():
    manager = KvloftManager(4)
    context = request(manager)
    assert isinstance(store(manager, context, keys_of(1, 2)).store_spec, CPULoadStoreSpec)
    spec = manager.prepare_load(keys_of(2, 1), context)
    assert isinstance(spec, CPULoadStoreSpec) and spec.block_ids.tolist() == [1, 0]
    assert manager.get_load_source(keys_of(1)[0], context) is CacheHitSource.HOST


@pytest.mark.parametrize(("state", "says"), [("missing", "not resident"), ("pending", "still being written")])
def test_a_load_of_what_is_not_ready_pins_nothing(state, says):
    manager = KvloftManager(2)
    context = request(manager)
    store(manager, context, keys_of(1))
    if state == "pending":
        manager.prepare_store(keys_of(2), context)
    with pytest.raises(BlockNotReady, match=says):
        manager.prepare_load(keys_of(1, 2), context)
    assert manager.pool.stats().pinned == 0


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_what_the_gpu_served_counts_as_used(policy):
    """The engine finds 1 and 2 in GPU memory and loads only 3: it never looks the head up."""
    manager = KvloftManager(6, policy)
    positions = {key: 16 * at for at, key in enumerate(keys_of(1, 2, 3), 1)}
    for name, numbers in (("first", (1, 2, 3)), ("other", (7, 8, 9))):
        context = request(manager, name, positions)
        store(manager, context, keys_of(*numbers))
        manager.on_request_finished(context)
    context = request(manager, "again", positions)
    manager.prepare_load(keys_of(3), context)
    manager.complete_load(set(keys_of(3)), context)
    assert manager.pool.stats().counters.hits == 1
    manager.on_request_finished(context)
    assert store(manager, request(manager, "new"), keys_of(20, 21, 22, 23)).evicted_keys == keys_of(9, 8, 7, 3)


def test_touch_counts_one_use():
    manager = KvloftManager(3, "lru")
    for number in (1, 2, 3):
        context = request(manager, str(number))
        store(manager, context, keys_of(number))
        manager.on_request_finished(context)
    manager.touch(keys_of(1, 9), request(manager, "later"))
    assert store(manager, request(manager, "new"), keys_of(4)).evicted_keys == keys_of(2)


# Store threshold.


@pytest.mark.parametrize("manager_class", [KvloftManager, CPUOffloadingManager])
def test_a_threshold_stores_what_is_offered_often_enough(manager_class):
    manager = manager_class(8, "lru", store_threshold=2, max_tracker_size=3)
    offers = [(1, 2), (2, 3), (4,), (1, 2), (3,), (1, 4)]
    stored = [store(manager, request(manager, str(at)), keys_of(*offer)).keys_to_store for at, offer in enumerate(offers)]
    assert stored == [[], keys_of(2), [], [], [], keys_of(1)]
    assert manager.get_stats().reduce()["vllm:kv_offload_stores_skipped"] == 7


@pytest.mark.parametrize("manager_class", [KvloftManager, CPUOffloadingManager])
def test_an_offer_larger_than_the_tracker_makes_progress(manager_class):
    manager = manager_class(8, "lru", store_threshold=2, max_tracker_size=2)
    for _ in range(2):
        output = store(manager, request(manager), keys_of(1, 2, 3, 4))
    assert output.keys_to_store == keys_of(1, 2)


# Events.


def residency(events, index):
    for event in events:
        (index.update if isinstance(event, BlockStored) else index.difference_update)(event.block_hashes)
        assert event.medium == "CPU" and isinstance(event, BlockStored | BlockRemoved)
    return index


def test_events_reach_vllms_publisher_in_order():
    """An index of who has what, kept by replaying the events, is right after evictions, failures and a reset."""
    manager = KvloftManager(3, enable_events=True)
    tracker = OffloadingEventsTracker(OffloadingKVEventsConfig(True, False))
    index = set()
    for number in range(1, 8):
        store(manager, request(manager, str(number)), keys_of(number, number + 1), success=number != 5)
        residency(tracker.take_events(manager.take_events()), index)
        ready = {key for key in keys_of(*range(10)) if manager.lookup(key, ReqContext("")) is LookupResult.HIT}
        assert len(index) == len(ready) > 0
    manager.reset_cache()
    store(manager, request(manager, "live"), keys_of(42))
    assert len(residency(tracker.take_events(manager.take_events()), index)) == 1
    assert list(manager.take_events()) == []


def test_without_events_nothing_gathers():
    manager = KvloftManager(2)
    for number in range(20):
        store(manager, request(manager, str(number)), keys_of(number))
    assert list(manager.take_events()) == [] and not manager.pool.take_events()


@pytest.mark.skipif(RELEASE < (0, 33), reason="vLLM 0.33 keeps notes of announced stores")
def test_a_failed_store_clears_vllms_notes():
    manager = KvloftManager(2, enable_events=True)
    store(manager, request(manager), keys_of(1), success=False)
    (event,) = manager.take_events()
    assert event.metadata_only and event.removed and event.keys == keys_of(1)
    store(manager, request(manager), keys_of(1, 2), success=False)
    manager.prepare_store(keys_of(2), request(manager, "retry"))
    (event,) = manager.take_events()
    assert event.keys == keys_of(1)


# Metrics.


def published(managers, extra_config):
    """What Prometheus shows after the managers' reports went through vLLM's channel."""
    registry = CollectorRegistry()
    types = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    if RELEASE < (0, 33):
        types[Gauge] = partial(Gauge, registry=registry)
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra_config))
    prometheus = OffloadPromMetrics(config, types, ["engine"], {0: ["0"]})
    total = OffloadingConnectorStats()
    for report in managers:
        total.aggregate(report)
    prometheus.observe(total.data)
    return lambda name, **labels: registry.get_sample_value(name, {"engine": "0", **labels})


def test_every_metric_reaches_prometheus():
    extra = {"spec_name": "KvloftSpec", "spec_module_path": "kvloft.vllm", "store_threshold": 2}
    manager = KvloftManager(4, "arc", store_threshold=2)
    reports = []
    for number in (1, 1, 2, 2, 1, 3, 3):
        context = request(manager, str(number))
        store(manager, context, keys_of(number, number + 10))
        manager.on_request_finished(context)
        reports.append(manager.get_stats())
    reader = request(manager, "reader")
    ready = [key for key in keys_of(*range(1, 20)) if manager.lookup(key, reader) is LookupResult.HIT]
    manager.prepare_load(ready[:3], reader)
    for _ in range(2):
        assert manager.prepare_store(keys_of(6, 7), reader) is None or _ == 0
    failing = request(manager, "failing")
    for _ in range(2):
        manager.prepare_store(keys_of(8), failing)
    manager.complete_store(set(keys_of(8)), failing, success=False)
    manager.complete_store(set(keys_of(8)), failing)
    reports.append(manager.get_stats())
    value = published(reports, extra)
    assert value("vllm:kvloft_hits_total") == 3
    assert value("vllm:kvloft_misses_total") == 7
    assert value("vllm:kvloft_stored_total") == 6
    assert value("vllm:kvloft_failed_stores_total") == 1
    assert value("vllm:kvloft_late_completions_total") == 1
    assert value("vllm:kvloft_refused_stores_total", reason="busy") == 1
    assert value("vllm:kvloft_evicted_total", list="t1") + (value("vllm:kvloft_evicted_total", list="t2") or 0) == 3
    assert [value("vllm:kvloft_blocks", state=state) for state in ("free", "writing", "ready", "pinned")] == [1, 0, 3, 3]
    assert value("vllm:kvloft_policy_blocks", list="t1") + value("vllm:kvloft_policy_blocks", list="t2") == 3
    assert value("vllm:kvloft_capacity_blocks") == 4
    assert value("vllm:kv_offload_cpu_cache_usage_perc") == value("vllm:kv_offload_cpu_cache_read_usage_perc") == 0.75
    assert value("vllm:kv_offload_stores_skipped_total") == 9


def test_tenants_have_numbers_of_their_own_as_long_as_they_are_few():
    manager = KvloftManager(64)
    for at in range(40):
        context = ReqContext(f"r{at}", kv_transfer_params={"kvloft": {"tenant": f"t{at}"}})
        store(manager, context, keys_of(at))
        manager.prepare_load(keys_of(at), context)
        manager.complete_load(set(keys_of(at)), context)
    store(manager, request(manager, "nobody's"), keys_of(50))
    value = published([manager.get_stats()], {"spec_name": "KvloftSpec", "spec_module_path": "kvloft.vllm"})
    assert value("vllm:kvloft_tenant_blocks_total", tenant="t0", what="loaded") == 1
    assert value("vllm:kvloft_tenant_blocks_total", tenant="t39", what="stored") is None
    assert value("vllm:kvloft_tenant_blocks_total", tenant=metrics.OTHERS, what="stored") == 8


def test_every_metric_is_declared():
    declared = metrics.metric_definitions({"store_threshold": 2})
    manager = KvloftManager(1, "arc", store_threshold=2)
    for number in (1, 1, 2, 2):
        store(manager, request(manager, str(number)), keys_of(number))
    manager.reset_cache()
    report = manager.get_stats()
    assert set(report.data["data"]) <= set(declared)
    for name, values in report.data["data"].items():
        assert all(len(labels) == len(declared[name].labelnames) for labels in values)
    assert manager.get_stats().reduce()["vllm:kvloft_capacity_blocks"] == 1
    assert "vllm:kvloft_resets" not in manager.get_stats().reduce()


# vLLM 0.33.


def test_what_0_33_asks_beyond_0_32():
    info = SimpleNamespace(as_config_info=lambda: {"cpu_num_chunks": 4})
    with KvloftManager(4, info=info).lock:
        assert KvloftManager(4, info=info).config_info() == [{"cpu_num_chunks": 4}]
    assert KvloftManager(4).config_info() == [{}]


def test_names_of_the_package():
    assert kvloft.vllm.KvloftManager is KvloftManager
    assert kvloft.vllm.ARC is kvloft.vllm.ARC
    with pytest.raises(AttributeError):
        kvloft.vllm.__nothing__  # noqa: B018


@pytest.mark.parametrize("policy", ["lru", "arc", "hdi", "s3-fifo", "lru+chains", "hdi+chains"])
def test_what_leaves_of_a_hybrid_model_leaves_with_all_groups(policy):
    """Chunks of one position are of use together; vLLM offers one group after the other."""
    manager = KvloftManager(24, policy)
    hashes = {name: [bytes([name, at]) * 16 for at in range(1, 5)] for name in range(12)}

    def keys(name, group):
        return [make_offload_key(one, group) for one in hashes[name]]

    for name in range(12):
        positions = {key: 16 * at for group in (0, 1) for at, key in enumerate(keys(name, group), 1)}
        context = request(manager, str(name), positions)
        offered = [*keys(name, 0), *keys(name, 1)]
        stored = store(manager, context, offered)
        kept = [key for key in offered if key in set(stored.keys_to_store)]
        assert stored.keys_to_store == kept and len(set(stored.store_spec.block_ids)) == len(kept)
        if name % 2:
            manager.on_request_finished(context)
        for other in range(name + 1):
            there = [[manager.pool.lookup(key).value == "hit" for key in keys(other, group)] for group in (0, 1)]
            assert all(group == sorted(group, reverse=True) for group in there)
            assert 0 <= sum(there[0]) - sum(there[1]) <= 1
