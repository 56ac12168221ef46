"""Object stores as a tier: the contract on a local folder and on moto's S3 server, and what is their own."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.testing.servers import S3Server
from kvloft.testing.tiers import RawTier, TierSuite
from kvloft.tiers import Presence, Status, Tier
from kvloft.tiers.objects import OBJECT_BOUNDS, ObjectAccess, ObjectTier
from kvloft.tiers.remote import path_of
from store_media import RawFolder, RawObjects, need, serving
from store_use import BLOCK, Use

pytestmark = pytest.mark.xdist_group("objects")
_places = itertools.count()
NAMESPACE = Namespace(model="suite")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    need(S3Server)
    with serving(S3Server()) as running:
        yield running


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3Server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3Server.secret_key)


def access_to(server: S3Server, folder: str = "folder") -> ObjectAccess:
    options = {"endpoint": server.endpoint, "region": "us-east-1"}
    return ObjectAccess(url=f"s3://{server.bucket}/{folder}", options=options, allow_http=True)


class TestFolder(TierSuite):
    bounded = False

    def open(self, place: Any, namespace: Namespace, capacity_bytes: int) -> Tier:
        return ObjectTier(ObjectAccess(url=f"file://{place}"), self.block_bytes, namespace)

    def raw(self, place: Any) -> RawTier:
        return RawFolder(place)


class TestS3(TierSuite):
    bounded = False

    @pytest.fixture
    def place(self, server: S3Server) -> Any:
        self.server = server
        yield f"suite{next(_places)}"
        server.resume()

    def open(self, place: Any, namespace: Namespace, capacity_bytes: int) -> Tier:
        return ObjectTier(access_to(self.server, place), self.block_bytes, namespace)

    def raw(self, place: Any) -> RawTier:
        from obstore.store import S3Store

        options: Any = {"endpoint": self.server.endpoint, "region": "us-east-1", "client_options": {"allow_http": True}}
        return RawObjects(S3Store(self.server.bucket, prefix=place, **options), "kvloft")

    def break_medium(self, tier: Tier, how: str | None) -> None:
        if how == "hang":
            self.server.pause()
        elif how is None:
            self.server.resume()
        else:
            pytest.skip("moto cannot be made to refuse only some requests; see the outages")


def test_names_are_hex_below_the_prefix(tmp_path: Path) -> None:
    secret = Namespace(model="suite", tenant="the tenant's salt")
    tier = ObjectTier(ObjectAccess(url=f"file://{tmp_path / 'store'}"), BLOCK, secret, prefix="loft")
    use = Use(tier)
    use.store(use.keys(3, "prompt"))
    tier.close()
    (tenant,) = {path.parent.relative_to(tmp_path / "store") for path in RawFolder(tmp_path / "store").frames()}  # type: ignore[attr-defined]
    first, version, model, name = tenant.parts
    assert (first, version) == ("loft", "v1")
    assert path_of(secret, "loft") == f"{tenant}/" and path_of(NAMESPACE, "loft").split("/")[2] == model
    for path in RawFolder(tmp_path / "store").frames():
        int(path.name + model + name, 16)  # type: ignore[attr-defined]
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_another_tenants_blocks_are_misses(server: S3Server) -> None:
    tenants = [Namespace(model="suite", tenant=name) for name in ("a", "b")]
    one, other = (Use(ObjectTier(access_to(server, "tenants"), BLOCK, tenant)) for tenant in tenants)
    assert one.store(one.keys(3)) == [Status.OK] * 3
    assert other.look(one.keys(3)) == [Presence.MISS] * 3
    assert other.load(one.keys(3)) == [Status.MISS] * 3
    one.tier.close()
    other.tier.close()


def test_credentials_come_from_the_providers_chain(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    file.write_text("[fleet]\naws_access_key_id = from-profile\naws_secret_access_key = hidden\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    options = {"endpoint": server.endpoint, "region": "us-east-1"}
    access = ObjectAccess(url=f"s3://{server.bucket}/p", options=options, profile="fleet", allow_http=True)
    use = Use(ObjectTier(access, BLOCK, NAMESPACE))
    assert use.store(use.keys(2)) == [Status.OK] * 2
    use.tier.close()
    assert "hidden" not in repr(access)
    with pytest.raises(ConfigError, match="nobody"):
        ObjectTier(ObjectAccess(url="s3://bucket", options=options, profile="nobody"), BLOCK, NAMESPACE)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"url": "bucket/folder"}, "s3://"),
        ({"url": "s3://b?X-Amz-Signature=hunter2"}, "query"),
        ({"url": "https://me:hunter2@host/b"}, "password"),
        ({"url": "s3://b", "options": {"secret_access_key": "hunter2"}}, "secret_access_key"),
        ({"url": "s3://b", "options": {"regoin": "x"}}, "did you mean region"),
    ],
)
def test_bad_settings_say_what_to_write_and_repeat_no_secret(settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as refused:
        ObjectAccess(**settings)
    assert "hunter2" not in str(refused.value)


def test_errors_repeat_no_signed_query(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvloft.tiers.secret import redact

    text = "Error performing GET https://acct.blob.core.windows.net/c/b?sv=2024&sig=hunter2 in 3 s\n\nDebug source:\nhunter2"
    assert redact(text) == "Error performing GET https://acct.blob.core.windows.net/c/b?... in 3 s"
    assert redact("Error connecting to redis://me:hunter2@host:1/0") == "Error connecting to redis://...@host:1/0"


def test_a_full_folder_is_a_counted_drop(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    try:
        use = Use(ObjectTier(ObjectAccess(url=f"file://{small / 'store'}"), BLOCK, NAMESPACE))
        statuses = use.store(use.keys(40))
        kept = [key for key, status in zip(use.keys(40), statuses, strict=True) if status is Status.OK]
        assert set(statuses) == {Status.OK, Status.DROPPED} and use.tier.stats().counters["dropped"] == 40 - len(kept)
        assert use.load(kept) == [Status.OK] * len(kept)
        use.tier.close()
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"kvloft\[s3\]"):
        ObjectTier(ObjectAccess(url="s3://bucket"), BLOCK, NAMESPACE, bounds=OBJECT_BOUNDS)
