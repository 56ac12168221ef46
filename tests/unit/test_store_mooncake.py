"""Mooncake Store as a tier: the contract on a real master and store client, over TCP; outages; memory."""

import itertools
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.testing.servers import MooncakeServer
from kvloft.testing.tiers import RawTier, TierSuite
from kvloft.tiers import Presence, Status, Tier
from kvloft.tiers.mooncake import MOONCAKE_BOUNDS, MooncakeAccess, MooncakeTier
from kvloft.tiers.remote import Bounds
from store_media import RawMooncake, need, serving
from store_use import BLOCK, Use

pytestmark = pytest.mark.xdist_group("mooncake")
_places = itertools.count()
NAMESPACE = Namespace(model="suite")


@pytest.fixture(scope="module")
def server() -> Iterator[MooncakeServer]:
    need(MooncakeServer)
    with serving(MooncakeServer("64 MB")) as running:
        yield running


def access_to(server: MooncakeServer) -> MooncakeAccess:
    return MooncakeAccess(url=server.url, metadata=server.metadata)


@pytest.fixture(scope="module")
def client(server: MooncakeServer) -> Iterator[Any]:
    """The library's client, not closed between tests: it takes a second to do so."""
    holder = MooncakeTier(access_to(server), BLOCK, NAMESPACE, name="holder")
    Use(holder).look([b"connect"])
    yield holder._store._client.connected()  # type: ignore[attr-defined]
    holder.close()


@pytest.fixture
def place(server: MooncakeServer, client: Any) -> Iterator[str]:
    yield f"place{next(_places)}"
    server.resume()


class TestMooncake(TierSuite):
    bounded = False

    @pytest.fixture
    def place(self, server: MooncakeServer, client: Any) -> Any:
        self.server, self.client = server, client
        yield f"suite{next(_places)}"
        server.resume()

    def open(self, place: Any, namespace: Namespace, capacity_bytes: int) -> Tier:
        return MooncakeTier(access_to(self.server), self.block_bytes, namespace, prefix=place)

    def raw(self, place: Any) -> RawTier:
        return RawMooncake(self.server, self.client, place)

    def break_medium(self, tier: Tier, how: str | None) -> None:
        if how == "hang":
            self.server.pause()
        elif how is None:
            self.server.resume()
        else:
            pytest.skip("Mooncake cannot be made to refuse only some requests")


@contextmanager
def tier(server: MooncakeServer, prefix: str, **settings: Any) -> Iterator[Use]:
    opened = MooncakeTier(access_to(server), BLOCK, NAMESPACE, prefix=prefix, **settings)
    try:
        yield Use(opened)
    finally:
        opened.close()


def slots(arena: Any) -> list[memoryview]:
    return [row.data for row in arena]


def test_blocks_of_the_arena_go_to_and_from_it_directly(server: MooncakeServer, place: str) -> None:
    arena = np.zeros((16, BLOCK), np.uint8)
    with tier(server, place, arena=arena.reshape(-1).data) as use:
        keys = use.keys(8)
        for row, key in zip(arena, keys, strict=False):
            row[:] = np.frombuffer(use.content(key), np.uint8)
        use.tier.submit_store(1, keys, slots(arena)[:8])
        assert use.answer(1).statuses == [Status.OK] * 8
        use.tier.submit_load(2, [*keys[:4], b"none"], slots(arena)[8:13])
        assert use.answer(2).statuses == [Status.OK] * 4 + [Status.MISS]
        assert (arena[8:12] == arena[:4]).all() and use.tier._store._rows.nbytes < BLOCK  # type: ignore[attr-defined]
    with tier(server, place) as use:
        assert use.load(keys) == [Status.OK] * 8, "a reader without an arena finds them too"


@pytest.mark.parametrize("length", [0, 50, 104, 105, 5000, BLOCK + 105])
def test_a_frame_of_another_length_is_removed(server: MooncakeServer, client: Any, place: str, length: int) -> None:
    arena = np.zeros((4, BLOCK), np.uint8)
    with tier(server, place, arena=arena.reshape(-1).data) as use:
        keys = use.keys(2)
        use.tier.submit_store(1, keys, slots(arena)[:2])
        use.answer(1)
        raw = RawMooncake(server, client, place)
        name = raw.frames()[0]
        raw.write(name, (raw.read(name) + bytes(200))[:length])
        use.tier.submit_load(2, keys, slots(arena)[2:])
        assert sorted(status.value for status in use.answer(2).statuses) == ["miss", "ok"]
        use.until(lambda: len(raw.frames()) == 1)


def test_a_full_pool_drops_and_evicts() -> None:
    need(MooncakeServer)
    with MooncakeServer("16 MB", "--default_kv_lease_ttl=100") as small, tier(small, "p") as use:
        statuses = [status for turn in range(12) for status in use.store(use.keys(128, f"turn {turn}"))]
        assert set(statuses) <= {Status.OK, Status.DROPPED}
        assert use.tier.stats().counters["stored"] == statuses.count(Status.OK) > 500
        found = [status for turn in range(12) for status in use.load(use.keys(128, f"turn {turn}"))]
        assert set(found) == {Status.OK, Status.MISS}


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("arena", [False, True])
def test_a_paused_master_or_machine_fails_jobs_in_time(server: MooncakeServer, place: str, who: int, arena: bool) -> None:
    memory = np.zeros((8, BLOCK), np.uint8)
    with tier(server, place, arena=memory.reshape(-1).data if arena else None) as use:
        keys = use.keys(2)
        use.tier.submit_store(1, keys, slots(memory)[:2])
        assert use.answer(1).statuses == [Status.OK] * 2
        server.processes[who].send_signal(signal.SIGSTOP)
        use.tier.submit_load(2, keys, slots(memory)[2:4])
        use.tier.submit_store(3, use.keys(2, "new"), slots(memory)[4:6])
        # The library may wait for one after the other, as long as whoever started it in this process allows.
        assert use.tier.drain(20.0)
        answers = {answer.job: answer for answer in use.tier.poll()}
        assert answers[2].statuses == [Status.FAILED] * 2 and answers[2].error
        assert set(answers[3].statuses) <= {Status.FAILED, Status.DROPPED}
        memory[:] = 7
        server.processes[who].send_signal(signal.SIGCONT)
        use.tier.submit_load(4, keys, slots(memory)[6:])
        use.until(lambda: use.tier.drain(0))
        assert (memory[:6] == 7).all(), "a late answer touched buffers that were given back"


def test_a_killed_pool_is_a_failure_and_a_restarted_one_an_empty_store() -> None:
    need(MooncakeServer)
    with MooncakeServer("64 MB") as server, tier(server, "p") as use:
        keys = use.keys(3)
        assert use.store(keys) == [Status.OK] * 3
        server.kill()
        assert use.load(keys) == [Status.FAILED] * 3
        assert use.look(use.keys(1, "unknown")) == [Presence.MISS]
        server.start()
        use.until(lambda: use.load(keys) == [Status.MISS] * 3)
        use.until(lambda: use.store(keys) == [Status.OK] * 3)
        assert use.load(keys) == [Status.OK] * 3


def test_an_engine_may_start_before_the_master() -> None:
    need(MooncakeServer)
    server = MooncakeServer("64 MB")
    with tier(server, "p", bounds=Bounds(batch_blocks=4, fresh=0.05)) as use:
        assert use.load(use.keys(1)) == [Status.FAILED]
        assert use.look(use.keys(1)) == [Presence.MISS]
        with server:
            use.until(lambda: use.store(use.keys(1)) == [Status.OK])
            server.pause()
        assert use.load(use.keys(1)) == [Status.FAILED]


def test_bad_settings_say_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="mooncake://host:port"):
        MooncakeAccess(url="localhost:50051")
    with pytest.raises(ConfigError, match="password") as refused:
        MooncakeAccess(url="mooncake://m:1", metadata="redis://u:hunter2@m:2")
    assert "hunter2" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(MissingExtra, match=r"kvloft\[mooncake\]"):
        MooncakeTier(MooncakeAccess(url="mooncake://nowhere:1"), BLOCK, NAMESPACE, bounds=MOONCAKE_BOUNDS)
