"""Shared stores named in settings: what is read, what is refused, and that no secret is repeated."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.tiers import stores
from kvloft.tiers.settings import read_tiers
from kvloft.tiers.stores import type_of

NAMESPACE = Namespace(model="settings")


def test_every_kind_is_made_from_its_settings(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them needs its server to be there."""
    pytest.importorskip("redis"), pytest.importorskip("obstore"), pytest.importorskip("cryptography")
    monkeypatch.setenv("SECRET", "0123456789abcdef")
    common = {"lookup_timeout": 0.5, "batch": "1MiB", "secret": "env:SECRET", "compression": 1, "prefix": "p"}
    plans = read_tiers(
        [
            {"type": "redis", "url": "redis://127.0.0.1:1", "password": "env:SECRET", "user": "u", "ttl": 60, **common},
            {"type": "objects", "name": "folder", "url": f"file://{tmp_path}", "concurrency": 4, **common},
        ]
    )
    for plan in plans:
        tier: Any = plan.open(4096, NAMESPACE)
        assert (tier.name, tier.block_bytes, tier.remote) == (plan.name, 4096, True)
        assert (tier._bounds.lookup, tier._bounds.batch_bytes) == (0.5, 1 << 20)
        assert tier._path.startswith("p/v1/") and tier._codec.label
        tier.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "redis", "url": "redis://h:1", "password": "hunter2"}, ["password", "env:NAME", "not the secret"]),
        ({"type": "redis", "url": "redis://h:1", "passwrod": "hunter2"}, ["passwrod", "did you mean password"]),
        ({"type": "redis", "url": "redis://h:1", "secret": {"hunter2": 1}}, ["secret", "env:NAME"]),
        ({"type": "redis", "url": "redis://h:1", "name": {"x": "hunter2"}}, ["name: is not text"]),
        ({"type": "redis", "url": "redis://h:1", "ttl": ["hunter2"]}, ["ttl", "seconds greater than 0"]),
        ({"type": "redis", "url": "redis://h:1", "chunk": {"x": "hunter2"}}, ["chunk", "not a size"]),
        ({"type": "disk", "path": {"x": "hunter2"}, "capacity": "1GiB"}, ["path: is not text"]),
        ({"tpye": "redis", "password": "hunter2"}, ["has no type", "redis, objects, mooncake"]),
        ({"type": "redis"}, ["url: missing"]),
        ({"type": "objects", "url": "s3://b", "options": ["hunter2"]}, ["options", "region"]),
        ({"type": "objects", "url": "s3://b", "readers": 0}, ["readers", "at least 1"]),
        ({"type": "mooncake", "url": "mooncake://h:1", "segment": "hunter2GB"}, ["segment", "4GiB"]),
    ],
)
def test_wrong_settings_say_what_to_write(settings: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tiers([settings])
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "hunter2" not in str(refused.value).replace("hunter2GB", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "redis", "url": "redis://u:hunter2@h:1"}, ["url", "password", "take it out"]),
        ({"type": "redis", "url": "u:hunter2@h:1"}, ["url", "password", "take it out"]),
        ({"type": "redis", "url": "redis://u:hunter2/x@h:1"}, ["url", "password", "take it out"]),
        ({"type": "mooncake", "url": ":hunter2@h:1"}, ["url", "password", "take it out"]),
        ({"type": "mooncake", "url": "mooncake://u:hunter2/x@h:1"}, ["url", "password", "take it out"]),
        ({"type": "objects", "url": "s3://b", "options": {"secret_access_key": "hunter2"}}, ["secret_access_key"]),
        ({"type": "mooncake", "url": "h:1"}, ["mooncake://host:port"]),
    ],
)
def test_wrong_addresses_are_refused(settings: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tiers([settings])
    assert all(word in str(refused.value) for word in words) and "hunter2" not in str(refused.value)


def test_a_list_that_is_none_is_not_repeated() -> None:
    for given in ('[{"type": "redis", "password": "hunter2"}]', {"password": "hunter2"}):
        with pytest.raises(ConfigError, match="is not a list of tiers") as refused:
            read_tiers(given)
        assert "hunter2" not in str(refused.value)


def test_a_secret_that_is_not_there_is_named_by_its_setting(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore"), pytest.importorskip("cryptography")
    monkeypatch.delenv("NOPE", raising=False)
    for setting in ("secret", "tenant"):
        (plan,) = read_tiers([{"type": "objects", "url": f"file://{tmp_path}", setting: "env:NOPE"}])
        with pytest.raises(ConfigError, match=f"^{setting}: the environment variable NOPE is not set"):
            plan.open(4096, NAMESPACE)
    (field,) = (field for field in stores.REDIS if field.name == "password")
    password = field.kind.read("env:NOPE")
    with pytest.raises(ConfigError, match=r"^password: the environment variable NOPE is not set"):
        password.read()
    with pytest.raises(ConfigError, match=r"^tiers\[0\]\.password: the 7 characters given are no reference"):
        read_tiers([{"type": "redis", "url": "redis://h:1", "password": "hunter2"}])


def test_the_extra_named_for_aws_profiles_brings_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setitem(sys.modules, "boto3", None)
    (plan,) = read_tiers([{"type": "objects", "url": "s3://bucket", "profile": "mine"}])
    with pytest.raises(MissingExtra) as refused:
        plan.open(4096, NAMESPACE)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(need.startswith("boto3") for need in project["optional-dependencies"][refused.value.extra])


def test_tenants_have_names_of_their_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    paths = set()
    for tenant in ("", "a", "b"):
        monkeypatch.setenv("TENANT", tenant or "unused")
        more = {"tenant": "env:TENANT"} if tenant else {}
        (plan,) = read_tiers([{"type": "objects", "url": f"file://{tmp_path}", **more}])
        tier: Any = plan.open(4096, NAMESPACE)
        paths.add(tier._path)
        assert tier._path.split("/")[:3] == ["kvloft", "v1", NAMESPACE.name]
        tier.close()
    assert len(paths) == 3
    monkeypatch.delenv("TENANT")
    with pytest.raises(ConfigError, match=r"tenant: .*TENANT is not set"):
        plan.open(4096, NAMESPACE)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h:1", "redis"),
        ("rediss://h:1", "redis"),
        ("mooncake://h:1", "mooncake"),
        ("s3://b", "objects"),
        ("x", "objects"),
    ],
)
def test_an_address_tells_the_type(url: str, kind: str) -> None:
    assert type_of(url) == kind
