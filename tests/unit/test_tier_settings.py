"""Tiers from settings."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.memory import MemoryTier
from kvloft.tiers.settings import read_tier, read_tiers


def problems(given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_tiers(given)
    return caught.value.problems


def test_a_disk_by_its_settings(tmp_path: Path) -> None:
    settings = {"path": str(tmp_path), "capacity": "4MiB", "min_free": "1MiB", "ttl": 60, "threads": 2, "policy": "arc"}
    plan = read_tier({"type": "disk", "name": "nvme", "namespace": "adapters of May", **settings})
    assert (plan.name, plan.label) == ("nvme", "adapters of May")
    tier = plan.open(8192, Namespace(model="m"))
    assert isinstance(tier, DiskTier)
    assert (tier.name, tier.capacity_bytes, tier.block_bytes) == ("nvme", 4 << 20, 8192)
    tier.close()


def test_a_tier_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_tiers")

    class MyTier(MemoryTier):
        def __init__(self, block_bytes: int, namespace: Namespace, blocks: int) -> None:
            super().__init__(block_bytes * blocks)

    module.MyTier = MyTier  # type: ignore[attr-defined]
    module.nothing = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_tiers", module)
    tier = read_tier({"type": "MyTier", "module_path": "my_tiers", "blocks": 5}).open(100, Namespace(model="m"))
    assert (tier.name, tier.capacity_bytes) == ("MyTier", 500)
    assert problems([{"type": "nothing", "module_path": "my_tiers"}]) == [
        "tiers[0].type: 'my_tiers' has no kvloft Tier class 'nothing'"
    ]
    assert "cannot be imported" in problems([{"type": "MyTier", "module_path": "no_such_module"}])[0]


def test_every_fault_is_named() -> None:
    found = problems(
        [
            {"type": "disk", "path": 3, "capasity": "1GiB"},
            {"type": "disc", "path": "/x"},
            {"path": "/x"},
            {"type": "disk", "path": "/x", "capacity": "1GiB", "name": 4},
            {"type": "disk", "path": "/x", "capacity": "lots", "threads": 0, "direct": "yes", "ttl": -1, "policy": "lru2"},
        ]
    )
    assert len(found) == 11
    assert "tiers[0].capasity: unknown setting; did you mean capacity?" in found
    assert "tiers[0].capacity: missing; say what it is" in found
    assert "tiers[1].type: 'disc' is unknown; did you mean 'disk'?" in found
    assert any(problem.startswith("tiers[4].policy: 'lru2' is unknown; choose one of: ") for problem in found)


def test_names_are_unique() -> None:
    disk = {"type": "disk", "path": "/x", "capacity": "1GiB"}
    assert problems([disk, disk]) == ["tiers[1].name: 'disk' is the name of another tier; give each a `name` of its own"]
    assert [plan.name for plan in read_tiers([disk, {**disk, "name": "second"}])] == ["disk", "second"]


@pytest.mark.parametrize("given", ["disk", 3, {"type": "disk"}])
def test_a_list_is_needed(given: Any) -> None:
    assert 'give one such as [{"type": "disk", ' in problems(given)[0]
