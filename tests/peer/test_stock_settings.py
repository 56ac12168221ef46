"""vLLM takes what `kvloft config` prints, and reads no setting that our tables do not know."""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

import vllm.distributed.kv_transfer.kv_connector.v1.offloading as offloading
import vllm.v1.kv_offload as kv_offload
from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from kvloft.settings.build import Wanted, build
from kvloft.settings.connector import CONNECTOR, SPECS, Way
from kvloft.settings.spec import REFUSED
from kvloft.vllm.compat import RELEASE
from kvloft.vllm.policy import KvloftCachePolicy
from offloading import offloading_config

BLOCK = 8192


def spec_of(config: dict[str, Any]) -> Any:
    """What vLLM makes of a configuration that was printed."""
    transfer = KVTransferConfig(**json.loads(json.dumps(config)))
    assert transfer.is_kv_transfer_instance
    made = OffloadingSpecFactory.create_spec(
        offloading_config(transfer.kv_connector_extra_config, BLOCK, engine=f"kvloft-test-{time.time_ns()}")
    )
    assert made.num_chunks == 8
    return made


def test_vllm_takes_kvloft_whole(tmp_path: Path) -> None:
    settings = ["cascade.pending_seconds=3", "disk.namespace=test", "tiers_after_reset=keep"]
    wanted = Wanted(host="64KiB", disks=[f"{tmp_path}:4MiB"], policy="hdi", settings=settings)
    manager = spec_of(build(wanted)).get_manager()
    assert manager.pool.policy.name == "hdi"
    assert manager.cascade.config.pending_seconds == 3.0
    assert manager.cascade.stats().tiers["disk"].tier.capacity_bytes == 4 << 20
    manager.shutdown()


@pytest.mark.parametrize("policy", ["lru", "arc", "s3-fifo", "arc-vllm"])
def test_vllm_takes_a_policy(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvloft")
    manager = spec_of(build(Wanted(host="64KiB", way=Way.POLICY, policy=policy))).get_manager()
    assert isinstance(manager._policy, KvloftCachePolicy)
    assert manager._policy.name == policy
    assert f"in vLLM's own manager: 8 blocks, policy {policy}" in caplog.text


def test_vllm_takes_a_disk_below_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvloft")
    settings = ["disk.namespace=test", "disk.after_reset=keep", "disk.locality=LOCAL"]
    wanted = Wanted(host="64KiB", way=Way.TIERING, disks=[f"{tmp_path}:4MiB"], settings=settings)
    manager = spec_of(build(wanted)).get_manager()
    (tier,) = manager.secondary_tiers
    assert (tier.tier.capacity_bytes, tier._keep) == (4 << 20, True)
    assert f"below vLLM's own tiering: blocks of 8 KiB in disk {tmp_path} up to 4 MiB" in caplog.text
    manager.shutdown()


def test_the_connectors_fields_are_those_of_vllm() -> None:
    assert {field.name for field in CONNECTOR} == {*KVTransferConfig.__dataclass_fields__}


def test_every_setting_that_vllm_reads_is_known_and_there_are_no_others() -> None:
    asked = re.compile(r"extra_config(?:\.get\(|\[)\s*\"(\w+)\"")
    folders = [Path(package.__path__[0]) for package in (kv_offload, offloading)]
    files = [path for folder in folders for path in folder.rglob("*.py") if "kvcr" not in path.parts]
    read = {name for path in files for name in asked.findall(path.read_text())}
    known = {field.name for way in Way for field in SPECS[way][1]}
    assert read - known - {*REFUSED} == set()
    later = {"sync_load_budget_bytes", "tier_poll_interval_s"} if RELEASE < (0, 33) else set()
    stock = {field.name for way in (Way.POLICY, Way.TIERING) for field in SPECS[way][1]}
    assert stock - read == later
