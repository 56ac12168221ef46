"""Tiers from settings."""

import os
import sys
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.memory import MemoryTier
from kvloft.tiers.mooncake import MooncakeAccess, MooncakeTier
from kvloft.tiers.objects import ObjectAccess, ObjectTier
from kvloft.tiers.redis import RedisAccess, RedisTier
from kvloft.tiers.settings import TYPES, read_tier, read_tiers


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
    assert any(problem.startswith("tiers[0].capacity: missing; give bytes, or text such as ") for problem in found)
    assert "tiers[1].type: 'disc' is unknown; did you mean 'disk'?" in found
    assert any(problem.startswith("tiers[4].policy: 'lru2' is unknown; did you mean 'lru-2'") for problem in found)


def test_a_disk_may_be_a_share_of_its_file_system(tmp_path: Path) -> None:
    volume = os.statvfs(tmp_path)
    path = str(tmp_path / "not/yet/there")
    tier = read_tier({"type": "disk", "path": path, "capacity": "2.5%", "min_free": "1%"}).open(8192, Namespace(model="m"))
    assert tier.capacity_bytes == int(volume.f_blocks * volume.f_frsize * 0.025)
    tier.close()
    assert "more than 0% and at most 100%" in problems([{"type": "disk", "path": path, "capacity": "101%"}])[0]


@pytest.mark.parametrize(
    ("kind", "made_of", "renamed"),
    [
        ("disk", (DiskTier,), {"min_free": "min_free_bytes"}),
        ("redis", (RedisAccess, RedisTier), {"chunk": "chunk_bytes"}),
        ("objects", (ObjectAccess, ObjectTier), {}),
        ("mooncake", (MooncakeAccess, MooncakeTier), {}),
    ],
)
def test_the_tables_tell_the_defaults_of_the_classes(kind: str, made_of: tuple[Any, ...], renamed: dict[str, str]) -> None:
    actual = {name: it.default for made in made_of for name, it in signature(made).parameters.items()}
    for field in TYPES[kind].fields:
        name = renamed.get(field.name, field.name)
        if name in actual and field.default is not None:
            assert actual[name] == field.default, field.name
        elif not field.required and name in actual:
            assert not actual[name] or field.name == "options"


def test_names_are_unique() -> None:
    disk = {"type": "disk", "path": "/x", "capacity": "1GiB"}
    assert problems([disk, disk]) == ["tiers[1].name: 'disk' is the name of another tier; give each a `name` of its own"]
    assert [plan.name for plan in read_tiers([disk, {**disk, "name": "second"}])] == ["disk", "second"]


@pytest.mark.parametrize("given", ["disk", 3, {"type": "disk"}])
def test_a_list_is_needed(given: Any) -> None:
    assert 'give one such as [{"type": "disk", ' in problems(given)[0]
