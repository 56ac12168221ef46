"""Outages of real servers: paused, killed, restarted, cut off. Every job is answered, nothing wrong is served, and no call
of the caller's thread waits for the store."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kvloft.keys import Namespace
from kvloft.testing.servers import LOOPBACK, RedisServer, S3Server, Server
from kvloft.tiers import Presence, Status, Tier
from kvloft.tiers.objects import ObjectAccess, ObjectTier
from kvloft.tiers.redis import RedisAccess, RedisTier
from kvloft.tiers.remote import Bounds
from kvloft.tiers.wrappers import Slow, Throttled
from store_media import need
from store_use import BLOCK, Use

pytestmark = pytest.mark.xdist_group("outages")
NAMESPACE = Namespace(model="outages")
QUICK = Bounds(connect=0.5, lookup=0.2, get=0.5, put=0.7, fresh=0.05, slowest=1e9)
_places = itertools.count()


class Proxy:
    """Stands before a server's port, and cuts every connection once that many more bytes have come from the server."""

    def __init__(self, port: int) -> None:
        self.limit: int | None = None
        self._port = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOOPBACK, self._port))
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        try:
            while data := source.recv(4096):
                if down and self.limit is not None:
                    data, self.limit = data[: self.limit], max(0, self.limit - len(data))
                    if self.limit == 0:
                        sink.sendall(data)
                        break
                sink.sendall(data)
        except OSError:
            pass  # the other half of this connection was cut
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def open_redis(server: Server, port: int | None = None, bounds: Bounds = QUICK) -> Tier:
    assert isinstance(server, RedisServer)
    access = RedisAccess(url=f"redis://{LOOPBACK}:{port or server.port}")
    return RedisTier(access, BLOCK, NAMESPACE, bounds=bounds, prefix=f"place{next(_places)}")


def open_s3(server: Server, port: int | None = None, bounds: Bounds = QUICK) -> Tier:
    assert isinstance(server, S3Server)
    options = {"endpoint": f"http://{LOOPBACK}:{port or server.port}", "region": "us-east-1"}
    access = ObjectAccess(url=f"s3://{server.bucket}/place{next(_places)}", options=options, allow_http=True)
    return ObjectTier(access, BLOCK, NAMESPACE, bounds=bounds)


Kind = tuple[Server, Callable[..., Tier]]


@pytest.fixture(scope="module", params=["redis", "s3"])
def kind(request: Any) -> Iterator[Kind]:
    kinds: dict[str, tuple[type[Server], Callable[..., Tier]]] = {
        "redis": (RedisServer, open_redis),
        "s3": (S3Server, open_s3),
    }
    server, opener = kinds[request.param]
    need(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", S3Server.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", S3Server.secret_key)
        with server() as running:
            yield running, opener


@contextmanager
def using(kind: Kind, **settings: Any) -> Iterator[Use]:
    server, opener = kind
    tier = opener(server, **settings)
    try:
        yield Use(tier)
    finally:
        server.resume()
        tier.close()


def test_a_paused_server_fails_jobs_in_time_and_is_used_again(kind: Kind) -> None:
    server, _ = kind
    with using(kind) as use:
        keys = use.keys(6)
        use.until(lambda: use.store(keys) == [Status.OK] * 6)
        server.pause()
        load, buffers = use.submit_load(keys)
        store = use.submit_store(use.keys(6, "new"))
        assert use.tier.drain(10.0)
        answers = {answer.job: answer for answer in use.tier.poll()}
        assert set(answers) == {load, store}
        for answer in answers.values():
            assert set(answer.statuses) == {Status.FAILED} and answer.error
        assert use.look(use.keys(1, "unknown")) == [Presence.MISS]
        for buffer in buffers:
            buffer[:] = bytes(BLOCK)
        server.resume()
        use.until(lambda: use.load(keys) == [Status.OK] * 6)
        use.until(lambda: Presence.HIT in use.tier.lookup(keys))
        assert not any(map(any, buffers)), "a late answer touched buffers that were given back"


def test_a_killed_server_is_a_failure_and_a_restarted_one_an_empty_store(kind: Kind) -> None:
    server, _ = kind
    with using(kind) as use:
        keys = use.keys(4)
        use.store(keys)
        server.kill()
        assert use.load(keys) == [Status.FAILED] * 4
        assert use.store(use.keys(2, "new")) == [Status.FAILED] * 2
        assert use.look(use.keys(1, "unknown")) == [Presence.MISS]
        server.start()
        use.until(lambda: use.load(keys) == [Status.MISS] * 4)
        use.until(lambda: use.store(keys) == [Status.OK] * 4)
        use.until(lambda: use.load(keys) == [Status.OK] * 4)


def test_a_server_killed_at_full_speed_never_serves_wrong_bytes(kind: Kind) -> None:
    server, _ = kind
    with using(kind) as use:
        jobs: dict[int, tuple[list[bytes], list[memoryview]]] = {}
        answered = 0
        for turn in range(30):
            keys = use.keys(4, f"turn {turn % 8}")
            use.submit_store(keys)
            job, buffers = use.submit_load(keys)
            jobs[job] = keys, buffers
            if turn in (8, 20):
                server.kill()
            if turn in (12, 24):
                server.start()
            answered += check(use, jobs)
        assert use.tier.drain(20.0)
        answered += check(use, jobs)
        assert answered == 60
        use.until(lambda: use.store(use.keys(2)) == [Status.OK] * 2)


def check(use: Use, jobs: dict[int, tuple[list[bytes], list[memoryview]]]) -> int:
    answers = use.tier.poll()
    for answer in answers:
        for key, buffer, status in zip(*jobs.get(answer.job, ([], [])), answer.statuses, strict=False):
            assert status is not Status.OK or bytes(buffer) == use.content(key)
    return len(answers)


@pytest.mark.parametrize("limit", [0, 100, 2 * BLOCK + 50])
def test_a_connection_cut_in_the_middle_is_a_failure(kind: Kind, limit: int) -> None:
    server, opener = kind
    proxy = Proxy(server.port)  # type: ignore[attr-defined]
    try:
        with using((server, opener), port=proxy.port) as use:
            keys = use.keys(4)
            use.until(lambda: use.store(keys) == [Status.OK] * 4)
            proxy.limit = limit
            assert set(use.load(keys)) <= {Status.FAILED, Status.MISS, Status.OK}
            proxy.limit = None
            use.until(lambda: use.load(keys) == [Status.OK] * 4)
            proxy.limit = limit
            assert set(use.store(use.keys(4, "more"))) <= {Status.FAILED, Status.OK}
            proxy.limit = None
            use.until(lambda: use.store(use.keys(4, "more")) == [Status.OK] * 4)
            use.until(lambda: use.load([*keys, *use.keys(4, "more")]) == [Status.OK] * 8)
    finally:
        proxy.close()


def test_more_than_may_wait_is_dropped(kind: Kind) -> None:
    server, _ = kind
    bounds = Bounds(put=0.5, get=0.5, waiting_bytes=10 * BLOCK)
    with using(kind, bounds=bounds) as use:
        server.pause()
        first = use.submit_store(use.keys(8, "a"))
        second = use.submit_store(use.keys(8, "b"))
        assert use.tier.drain(10.0)
        answers = {answer.job: answer.statuses for answer in use.tier.poll()}
        assert answers[first] == [Status.FAILED] * 8
        assert answers[second] == [Status.FAILED] * 2 + [Status.DROPPED] * 6
        assert use.tier.stats().counters["dropped"] == 6


def test_however_large_a_block_is_one_may_wait(kind: Kind) -> None:
    with using(kind, bounds=Bounds(waiting_bytes=1, put=5.0)) as use:
        keys = use.keys(3)
        assert use.store(keys) == [Status.OK, Status.DROPPED, Status.DROPPED]
        assert use.store(keys[1:]) == [Status.OK, Status.DROPPED]


def test_behind_a_slow_wrapper_everything_comes_in_the_end(kind: Kind) -> None:
    """The wrappers that other tiers are tested with fit this one."""
    server, opener = kind
    slow = Slow(Throttled(opener(server, bounds=Bounds(put=5.0, get=5.0)), 4 << 20), delay=0.05)
    use = Use(slow)
    assert use.store(use.keys(3)) == [Status.OK] * 3
    assert use.load(use.keys(4)) == [Status.OK] * 3 + [Status.MISS]
    slow.close()


def test_a_block_removed_while_the_server_is_away_is_never_found_again(kind: Kind) -> None:
    server, _ = kind
    with using(kind) as use:
        keys = use.keys(3)
        use.until(lambda: use.store(keys) == [Status.OK] * 3)
        server.pause()
        use.tier.remove(keys[:1])
        assert use.load(keys[:1]) == [Status.MISS]
        use.until(lambda: use.tier.stats().counters.get("remove_failed", 0) == 1)
        server.resume()
        assert use.look(keys[:1]) == [Presence.MISS]
        use.until(lambda: use.load(keys) == [Status.MISS, Status.OK, Status.OK])
        use.flavour = b"anew "
        use.until(lambda: use.store(keys[:1]) == [Status.OK])
        # Loading checks the content: the old bytes were replaced.
        use.until(lambda: use.load(keys[:1]) == [Status.OK])


def test_closing_does_not_wait_for_the_server(kind: Kind) -> None:
    server, opener = kind
    use = Use(opener(server))
    use.store(use.keys(1))
    server.pause()
    use.submit_store(use.keys(2, "new"))
    use.tier.remove(use.keys(1))
    use.tier.close()
    server.resume()
    assert [set(answer.statuses) for answer in use.tier.poll()] == [{Status.FAILED}]


def test_the_callers_thread_never_waits(kind: Kind) -> None:
    """All calls but `drain` and `close`, while the server is paused: they are all done before the first job is overdue."""
    server, _ = kind
    with using(kind, bounds=Bounds(connect=8.0, lookup=8.0, get=8.0, put=8.0)) as use:
        keys = use.keys(32)
        use.store(keys[:16])
        server.pause()
        for turn in range(20):
            use.tier.lookup(keys)
            use.submit_load(keys[:4])
            use.submit_store(use.keys(4, f"turn {turn}"))
            use.tier.touch(keys)
            use.tier.remove(use.keys(1, f"turn {turn}"))
            use.tier.stats()
            assert use.tier.poll() == []
        server.resume()
        assert use.tier.drain(20.0)
        assert len(use.tier.poll()) == 40
