"""`KvloftSpec` without an engine: its settings, and what it makes of them."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

from kvloft import __version__
from kvloft.errors import ConfigError
from kvloft.policies import policy_names
from kvloft.vllm import KvloftSpec
from kvloft.vllm.compat import RELEASE, join_logging
from offloading import offloading_config

MakeSpec = Callable[..., Any]


def make_spec(ranks: int = 1, block_bytes: int = 5000, blocks_per_chunk: int = 2, **settings: Any) -> Any:
    return KvloftSpec(
        offloading_config(
            {"spec_name": "KvloftSpec", "spec_module_path": "kvloft.vllm", **settings},
            block_bytes,
            blocks_per_chunk=blocks_per_chunk,
            ranks=ranks,
        )
    )


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make_spec(**settings)
    return caught.value.problems


@pytest.mark.parametrize("size", ["1MiB", 1 << 20, "1024 KiB", 1048576.0])
def test_size_becomes_chunks(size: object) -> None:
    spec = make_spec(ranks=3, cpu_bytes_to_use=size)
    # 3 ranks * 2 blocks * 5000 bytes, up to whole pages.
    assert spec.kv_bytes_per_chunk == 32768
    assert spec.num_chunks == 32
    assert spec.cpu_page_size_per_worker == 10000
    assert spec.get_manager().pool.capacity == 32
    assert spec.get_manager() is spec.get_manager()


def test_what_is_configured_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiers = [
        {"type": "disk", "path": str(tmp_path), "capacity": "2MiB", "namespace": "test"},
        {"type": "objects", "name": "far", "url": f"file://{tmp_path}", "namespace": "test"},
    ]
    with caplog.at_level(logging.INFO, "kvloft.vllm.spec"):
        manager = make_spec(cpu_bytes_to_use="1MiB", eviction_policy="arc", tiers=tiers).get_manager()
    manager.shutdown()
    (line,) = (record.getMessage() for record in caplog.records if record.name == "kvloft.vllm.spec")
    assert line == (
        f"kvloft {__version__} for model: 1020 KiB of host memory, 85 blocks of 12 KiB and 64 tokens, policy arc; "
        f"then disk {tmp_path} up to 2 MiB; then far file://{tmp_path}; everything goes down"
    )


def test_the_log_comes_out_where_that_of_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, root = (logging.getLogger(name) for name in ("kvloft", "vllm", None))
    for log, handlers in ((ours, []), (theirs, [logging.NullHandler()]), (root, [])):
        monkeypatch.setattr(log, "handlers", handlers)
    monkeypatch.setattr(ours, "level", ours.level)
    monkeypatch.setattr(theirs, "level", logging.INFO)
    join_logging()
    assert ours.handlers == theirs.handlers and ours.level == logging.INFO
    mine = [logging.NullHandler()]
    monkeypatch.setattr(ours, "handlers", mine)
    join_logging()
    assert ours.handlers is mine


def test_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvloft.settings.spec.total_memory", lambda: 10 << 20)
    assert make_spec(cpu_bytes_to_use="80%").get_manager().pool.capacity == (8 << 20) // 12288


def test_what_vllm_publishes_of_host_memory() -> None:
    [facts] = make_spec(ranks=3, cpu_bytes_to_use="1MiB").get_manager().config_info()
    if RELEASE < (0, 33):
        assert facts == {}
    else:
        assert (facts["cpu_num_chunks"], facts["cpu_blocks_per_chunk"], facts["cpu_kv_cache_size_bytes"]) == (32, 2, 1 << 20)


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_by_name(policy: str) -> None:
    assert make_spec(cpu_bytes_to_use="1MiB", eviction_policy=policy).get_manager().pool.policy.name == policy


def test_vllm_way_of_naming_a_policy() -> None:
    spec = make_spec(cpu_bytes_to_use="1MiB", eviction_policy="ARCvLLM", cache_policy_module_path="kvloft.vllm")
    assert spec.get_manager().pool.policy.name == "arc-vllm"


def test_defaults_and_unrelated_keys() -> None:
    spec = make_spec(cpu_bytes_to_use="1MiB", somebody_elses_key=3, offload_prompt_only=False)
    assert (spec.eviction_policy, spec.transfer_threads, spec.offload_prompt_only) == ("hdi", 2, False)


def test_quotas_and_admission_reach_the_pool() -> None:
    """A tenant over its share evicts its own, and a large request spares what was read again and again."""
    spec = make_spec(cpu_bytes_to_use=16 * 12288, admission="scan-guard", quotas={"greedy": 0.25}, eviction_policy="lru")
    manager = spec.get_manager()
    assert spec.num_chunks == 16

    def ask(name: str, numbers: range, tenant: str) -> None:
        context = ReqContext(name, kv_transfer_params={"kvloft": {"tenant": tenant} if tenant else {}})
        keys = [make_offload_key(bytes([number]) * 32, 0) for number in numbers]
        manager.on_new_request(context)
        found = [key for key in keys if manager.lookup(key, context) is LookupResult.HIT]
        manager.prepare_load(found, context)
        manager.complete_load(found, context)
        stored = manager.prepare_store(keys, context)
        if stored is not None:
            manager.complete_store(set(stored.keys_to_store), context)
        manager.on_request_finished(context)

    for _ in range(3):
        ask("again", range(4), "")
    for number in range(6):
        ask(f"greedy {number}", range(10 + 4 * number, 14 + 4 * number), "greedy")
    assert manager.pool.stats().evicted["quota"] > 0
    ask("again", range(4), "")
    ask("scan", range(100, 116), "")
    assert len(manager.pool) == 16 and manager.pool.counters.declined == 4
    ask("again", range(4), "")
    assert manager.pool.counters.hits == 16


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["cpu_bytes_to_use: missing", "4GiB"]),
        ({"cpu_bytes_to_use": None}, ["cpu_bytes_to_use: missing"]),
        ({"cpu_bytes_to_use": "4 XB"}, ["cpu_bytes_to_use", "'4 XB'", "4GiB"]),
        ({"cpu_bytes_to_use": 12287}, ["cpu_bytes_to_use", "12287 bytes hold no block", "at least 12288"]),
        ({"eviction_policy": "acr"}, ["eviction_policy", "'acr'", "lru, arc"]),
        ({"eviction_policy": "s3-fif0"}, ["eviction_policy", "did you mean 's3-fifo'"]),
        ({"eviction_policy": 7}, ["eviction_policy", "7"]),
        ({"admission": "scan-gard"}, ["admission", "did you mean 'scan-guard'"]),
        ({"quotas": 0.3}, ["quotas", '{"acme": 0.3}']),
        ({"quotas": {"acme": 30}}, ["quotas", "'acme'", "30", "0.3"]),
        ({"transfer_threads": 0}, ["transfer_threads: 0", "from 1 to 64"]),
        ({"transfer_threads": "two"}, ["transfer_threads: 'two'"]),
        ({"store_threshold": -1}, ["store_threshold: -1", "at least 0"]),
        ({"store_threshold": True}, ["store_threshold: True"]),
        ({"max_tracker_size": 0}, ["max_tracker_size: 0", "at least 1"]),
        ({"cpu_byte_to_use": 1}, ["cpu_byte_to_use: unknown setting", "did you mean cpu_bytes_to_use?"]),
        ({"evictionpolicy": "arc"}, ["evictionpolicy: unknown setting", "did you mean eviction_policy?"]),
        ({"canonical_layout": True}, ["canonical_layout: is not possible", "leave it out"]),
        ({"secondary_tiers": [{"type": "fs"}]}, ["secondary_tiers", "name them in tiers"]),
    ],
)
def test_what_is_wrong_is_said_with_field_value_and_remedy(settings: dict[str, Any], words: list[str]) -> None:
    (problem,) = problems(**({"cpu_bytes_to_use": "1MiB"} | settings if settings else {}))
    assert problem.startswith("kv_connector_extra_config: ")
    for word in words:
        assert word in problem


@pytest.mark.parametrize(
    "settings",
    [
        {"secondary_tiers": [{"type": "redis", "password": "hunter2"}]},
        {"tier": [{"type": "redis", "password": "hunter2"}]},
        {"tiers": '[{"type": "redis", "password": "hunter2"}]'},
        {"tiers": {"type": "redis", "password": "hunter2"}},
        {"tiers": [{"type": "redis", "url": {"password": "hunter2"}}]},
        {"cascade": ["hunter2"]},
        {"record": {"password": "hunter2"}},
        {"eviction_policy": {"password": "hunter2"}},
        {"transfer_threads": ["hunter2"]},
        {"cpu_bytes_to_use": {"password": "hunter2"}},
    ],
)
def test_what_may_hold_a_secret_is_not_repeated(settings: dict[str, Any]) -> None:
    (problem,) = problems(**{"cpu_bytes_to_use": "1MiB", **settings})
    assert "hunter2" not in problem and f"{next(iter(settings))}" in problem


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = problems(cpu_bytes_to_use="much", eviction_policy="best", transfer_threads=99, store_treshold=2)
    assert len(found) == 4
    for name in ("cpu_bytes_to_use", "eviction_policy", "transfer_threads", "store_treshold"):
        assert sum(f" {name}: " in problem for problem in found) == 1


def test_latent_attention_is_refused_on_the_cpu_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """There vLLM goes on from loaded blocks to other tokens, whatever moved the bytes."""
    if not current_platform.is_cpu():
        pytest.skip("another platform")
    model = SimpleNamespace(use_mla=True, model="some/model")
    monkeypatch.setattr("kvloft.vllm.spec.engine_config", lambda: SimpleNamespace(model_config=model))
    (problem,) = problems(cpu_bytes_to_use="1MiB")
    assert "spec_name: 'KvloftSpec' cannot serve some/model on the CPU platform" in problem
    model.use_mla = False
    assert make_spec(cpu_bytes_to_use="1MiB").num_chunks > 0


def test_tiers_are_refused_where_ranks_are_on_several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import ParallelConfig

    spread = ParallelConfig(tensor_parallel_size=2, nnodes=2, distributed_executor_backend="mp")
    model = SimpleNamespace(use_mla=False, model="some/model")
    engine = SimpleNamespace(model_config=model, parallel_config=spread)
    monkeypatch.setattr("kvloft.vllm.spec.engine_config", lambda: engine)
    disk = {"type": "disk", "path": "/nvme/kvloft", "capacity": "1GiB"}
    (problem,) = problems(cpu_bytes_to_use="1MiB", tiers=[disk])
    assert "tiers: are not possible with ranks on 2 machines" in problem
    assert make_spec(cpu_bytes_to_use="1MiB").num_chunks > 0


@pytest.mark.parametrize("first", ["worker", "scheduler"])
def test_on_a_gpu_the_tiers_reach_the_memory_that_the_workers_copy_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str
) -> None:
    regions = []

    def make_worker(*_: object, mmap_region: Any) -> object:
        regions.append(mmap_region)
        return object()

    # No GPU here: all but vLLM's copying is real.
    monkeypatch.setattr("kvloft.vllm.spec.CPUOffloadingWorker", make_worker)
    monkeypatch.setattr("kvloft.vllm.spec.current_platform", SimpleNamespace(is_cpu=lambda: False))
    disk = {"type": "disk", "path": str(tmp_path), "capacity": "1MiB"}
    spec = make_spec(cpu_bytes_to_use="1MiB", tiers=[disk])
    host = spec._open_host() if first == "scheduler" else None
    spec.create_worker(None)
    host = host or spec._open_host()
    try:
        pages = regions[0].create_next_worker_view(spec.cpu_page_size_per_worker)
        pages[7] = 42
        assert set(host.view(7)[: spec.cpu_page_size_per_worker]) == {42}
        host.view(3)[:3] = b"abc"
        assert bytes(pages[3][:3].tolist()) == b"abc"
        host.hide()
        assert not os.path.exists(regions[0].mmap_path)
        pages[7] = 43
        assert host.view(7)[0] == 43
    finally:
        del pages
        regions[0].cleanup()
        host.close()
