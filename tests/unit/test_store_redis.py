"""Redis as a tier: the contract on a real server, and what is Redis's own: parts, expiry, eviction, TLS, users, clusters."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.testing.servers import RedisServer, free_port
from kvloft.testing.tiers import RawTier, TierSuite
from kvloft.tiers import Presence, Status, Tier
from kvloft.tiers.frame import HEADER_BYTES
from kvloft.tiers.redis import RedisAccess, RedisTier
from kvloft.tiers.remote import Bounds
from kvloft.tiers.secret import Secret
from store_media import RawRedis, need, serving
from store_use import BLOCK, Use, certificate

pytestmark = pytest.mark.xdist_group("redis")
_places = itertools.count()
NAMESPACE = Namespace(model="suite")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    need(RedisServer)
    with serving(RedisServer()) as running:
        yield running


@pytest.fixture
def place(server: RedisServer) -> Any:
    yield server.url, f"place{next(_places)}"
    server.resume()


class TestRedis(TierSuite):
    bounded = False

    @pytest.fixture
    def place(self, server: RedisServer) -> Any:
        self.server = server
        yield server.url, f"suite{next(_places)}"
        self.break_medium(None, None)  # type: ignore[arg-type]

    def open(self, place: Any, namespace: Namespace, capacity_bytes: int) -> Tier:
        url, prefix = place
        return RedisTier(RedisAccess(url=url), self.block_bytes, namespace, prefix=prefix, bounds=Bounds(lookup=5.0))

    def raw(self, place: Any) -> RawTier:
        return RawRedis(*place)

    def break_medium(self, tier: Tier, how: str | None) -> None:
        client = RawRedis(self.server.url, "").client
        if how == "hang":
            return self.server.pause()
        self.server.resume()
        client.config_set("maxmemory", 1 if how == "write" else 0)
        client.acl_setuser("default", enabled=True, commands=["-get" if how == "read" else "+@all"], reset=False)


@contextlib.contextmanager
def tier(place: Any, block_bytes: int = BLOCK, **settings: Any) -> Iterator[Use]:
    url, prefix = place
    access = settings.pop("access", None) or RedisAccess(url=url)
    opened = RedisTier(access, block_bytes, NAMESPACE, prefix=prefix, bounds=Bounds(lookup=5.0), **settings)
    try:
        yield Use(opened, block_bytes)
    finally:
        opened.close()


# Parts.


@pytest.mark.parametrize("block_bytes", [9000 - 12 - HEADER_BYTES, 9001 - 12 - HEADER_BYTES, 9000, 18000, 50000])
def test_a_block_in_parts_comes_back(place: Any, block_bytes: int) -> None:
    with tier(place, block_bytes, chunk_bytes=9000) as use:
        keys = use.keys(5)
        assert use.store(keys) == [Status.OK] * 5
        assert use.load(keys) == [Status.OK] * 5
        longest = max(map(use.tier._store._connect().strlen, RawRedis(*place).names()))
        assert longest <= 9000


def test_size_of_parts_is_the_writers_choice(place: Any) -> None:
    with tier(place, 50000, chunk_bytes=9000) as one, tier(place, 50000, chunk_bytes=1 << 20) as other:
        one.store(one.keys(3, "a"))
        other.store(other.keys(3, "b"))
        assert other.load(other.keys(3, "a")) == one.load(one.keys(3, "b")) == [Status.OK] * 3


def test_without_one_of_its_parts_a_block_is_a_miss(place: Any) -> None:
    with tier(place, 50000, chunk_bytes=9000) as use:
        keys = use.keys(2)
        use.store(keys)
        raw = RawRedis(*place)
        raw.client.delete(next(name for name in raw.names() if name.endswith(b":3")))
        assert sorted(status.value for status in use.load(keys)) == ["miss", "ok"]


def test_removing_and_touching_reach_all_parts(place: Any) -> None:
    with tier(place, 50000, chunk_bytes=9000, ttl=1000) as use:
        raw = RawRedis(*place)
        use.store(use.keys(1))
        for name in raw.names():
            raw.client.pexpire(name, 50_000)
        use.tier.touch(use.keys(1))
        use.until(lambda: all(raw.client.pttl(name) > 900_000 for name in raw.names()))
        assert len(raw.names()) == 6
        use.tier.remove(use.keys(1))
        use.until(lambda: not raw.names())


def test_two_writers_never_mix_their_parts(place: Any) -> None:
    """Another writer's block, different bit for bit, is being written at the same time: one of both comes back whole."""
    with tier(place, 50000, chunk_bytes=9000) as one, tier(place, 50000, chunk_bytes=9000) as other:
        other.flavour = b"other"
        for turn in range(20):
            keys = one.keys(4, f"turn {turn}")
            jobs = one.submit_store(keys), other.submit_store(keys)
            one.answer(jobs[0]), other.answer(jobs[1])
            job, buffers = one.submit_load(keys)
            assert one.answer(job).statuses == [Status.OK] * 4
            for key, buffer in zip(keys, buffers, strict=True):
                assert bytes(buffer) in (one.content(key), other.content(key))
        assert len(RawRedis(*place).names()) == 20 * 4 * 6, "the slower writer's parts are taken back"


# Expiry, eviction, a full server.


def test_blocks_expire_unless_used(place: Any) -> None:
    with tier(place, ttl=0.4) as use:
        used, unused = use.keys(2)
        use.store([used, unused])
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            use.tier.touch([used])
            time.sleep(0.02)
        assert use.load([used, unused]) == [Status.OK, Status.MISS]


def test_what_the_server_evicts_is_a_miss() -> None:
    need(RedisServer)
    with RedisServer("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru") as small, tier((small.url, "p")) as use:
        for turn in range(8):
            assert use.store(use.keys(64, f"turn {turn}")) == [Status.OK] * 64
        found = [status for turn in range(8) for status in use.load(use.keys(64, f"turn {turn}"))]
        assert found.count(Status.MISS) > 200 and found.count(Status.OK) > 20
        assert use.tier.stats().counters["missed"] == found.count(Status.MISS)
        assert "corrupt" not in use.tier.stats().counters


@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
def test_a_full_servers_refusals_are_counted_drops(chunk_bytes: int) -> None:
    need(RedisServer)
    full = RedisServer("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    with full, tier((full.url, "p"), chunk_bytes=chunk_bytes) as use:
        keys = use.keys(400)
        statuses = use.store(keys)
        kept = [key for key, status in zip(keys, statuses, strict=True) if status is Status.OK]
        assert set(statuses) == {Status.OK, Status.DROPPED}
        assert use.load(kept) == [Status.OK] * len(kept)
        counters = use.tier.stats().counters
        assert counters["dropped"] == 400 - len(kept) and counters["stored"] == len(kept)
        heads = [name for name in RawRedis(full.url, "p").names() if not name.startswith(b"{")]
        assert len(heads) == len(kept), "nothing of a refused block is left"


# Who we are, and how the connection is kept.


def test_tls_and_a_user_with_only_the_commands_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(RedisServer)
    needed = ["+exists", "+set", "+get", "+getrange", "+touch", "+unlink", "+pexpire"]
    server = RedisServer(
        "--user", "loft", "on", ">s3cr3t-pass", "~kvloft/*", "~{kvloft/*", *needed, cert=certificate(tmp_path)
    )
    monkeypatch.setenv("STORE_PASSWORD", "s3cr3t-pass")
    with server:
        access = RedisAccess(
            url=server.url, user="loft", password=Secret("env:STORE_PASSWORD"), ca=str(server.cert[0] if server.cert else "")
        )
        with tier((server.url, "kvloft"), access=access, chunk_bytes=4096, ttl=60) as use:
            assert use.store(use.keys(4)) == [Status.OK] * 4
            assert use.load(use.keys(4)) == [Status.OK] * 4
            use.tier.touch(use.keys(4))
            use.tier.remove(use.keys(1))
            assert use.look(use.keys(2)) == [Presence.MISS, Presence.HIT]
            use.tier.drain()
        assert not {name for name in use.tier.stats().counters if name.endswith("_failed")}
        monkeypatch.setenv("STORE_PASSWORD", "wrong-pass")
        with tier((server.url, "kvloft"), access=access) as use:
            answer = use.answer(use.submit_load(use.keys(1))[0])
            assert answer.statuses == [Status.FAILED] and answer.error
            assert "wrong-pass" not in answer.error and "s3cr3t" not in repr(access)
        stranger = RedisAccess(url=server.url, user="loft", password=Secret("env:STORE_PASSWORD"))
        with tier((server.url, "kvloft"), access=stranger) as use:
            assert "certificate" in str(use.answer(use.submit_load(use.keys(1))[0]).error).lower()


def test_a_password_given_in_the_open_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        RedisAccess(url="redis://user:hunter2@host:6379")
    assert "hunter2" not in str(refused.value) and "env:NAME" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        Secret("hunter2")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="redis://"):
        RedisAccess(url="host:6379")


def test_a_password_file_may_change_while_we_run(tmp_path: Path) -> None:
    need(RedisServer)
    secret = tmp_path / "password"
    secret.write_text("first\n")
    with RedisServer("--requirepass", "first") as server:
        access = RedisAccess(url=server.url, password=Secret(f"file:{secret}"))
        with tier((server.url, "p"), access=access) as use:
            assert use.store(use.keys(1)) == [Status.OK]
            use.tier._store._connect().config_set("requirepass", "second")
            server.kill()
            server.options = ("--requirepass", "second")
            server.start()
            assert use.answer(use.submit_load(use.keys(1))[0]).statuses == [Status.FAILED]
            secret.write_text("second\n")
            assert use.load(use.keys(1)) == [Status.MISS]


def test_a_cluster() -> None:
    """Two nodes with half of the slots each: blocks and their parts find theirs, whichever node was named."""
    need(RedisServer)
    import redis

    options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port")
    nodes = [RedisServer(*options, str(free_port())) for _ in range(2)]
    with nodes[0], nodes[1]:
        one, other = (redis.Redis.from_url(node.url, decode_responses=True) for node in nodes)
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        other.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, nodes[1].options[-1])
        with tier(
            (nodes[1].url, "p"), 50000, access=RedisAccess(url=nodes[1].url, cluster=True), chunk_bytes=9000, ttl=60
        ) as use:
            use.until(
                lambda: all("cluster_state:ok" in str(node.execute_command("CLUSTER", "INFO")) for node in (one, other))
            )
            use.until(
                lambda: len(one.execute_command("CLUSTER", "SLOTS")) == len(other.execute_command("CLUSTER", "SLOTS")) == 2
            )
            keys = use.keys(40)
            assert use.store(keys) == [Status.OK] * 40
            assert use.load(keys) == [Status.OK] * 40
            assert min(one.dbsize(), other.dbsize()) > 30
            use.tier.touch(keys)
            use.tier.remove(keys[:10])
            assert use.load(keys) == [Status.MISS] * 10 + [Status.OK] * 30
            use.until(lambda: one.dbsize() + other.dbsize() == 30 * 6)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.exceptions", None)
    with pytest.raises(MissingExtra, match=r"kvloft\[redis\]"):
        RedisTier(RedisAccess(url="redis://localhost"), BLOCK, NAMESPACE)
