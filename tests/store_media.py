"""Shared stores reached without the code under test, and real servers that skip or fail when they are missing."""

import struct
import urllib.request
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kvloft.testing.servers import MooncakeServer, Server, required
from kvloft.testing.tiers import RawTier

AnyServer = TypeVar("AnyServer", bound=Server)


def need(kind: type[Server]) -> None:
    """Skip, or fail where nothing may be skipped, if this server cannot be started here."""
    if missing := kind.missing():
        (pytest.fail if required() else pytest.skip)(f"{kind.__name__} needs {missing}")


@contextmanager
def serving(server: AnyServer) -> Iterator[AnyServer]:
    with server:
        yield server


class RawRedis(RawTier):
    """Blocks of one part under a prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        import redis

        self.client = redis.Redis.from_url(url)
        self.prefix = prefix

    def frames(self) -> list[Hashable]:
        return sorted(self.client.scan_iter(match=f"{self.prefix}/*", count=1000))

    def names(self) -> list[bytes]:
        """Of all keys, those of further parts included."""
        return sorted([*self.frames(), *self.client.scan_iter(match=f"{{{self.prefix}/*", count=1000)])

    def read(self, name: Any) -> bytes:
        value = self.client.get(name)
        assert value is not None and struct.unpack_from("<I", value)[0] == 1
        return value[12:]

    def write(self, name: Any, frame: bytes) -> None:
        self.client.set(name, struct.pack("<I8s", 1, bytes(8)) + frame)


class RawObjects(RawTier):
    """Objects under a prefix of a store of obstore's."""

    def __init__(self, store: Any, prefix: str) -> None:
        self.store = store
        self.prefix = prefix

    def frames(self) -> list[Hashable]:
        import obstore

        return sorted(meta["path"] for page in obstore.list(self.store, self.prefix) for meta in page)

    def read(self, name: Any) -> bytes:
        import obstore

        return bytes(obstore.get(self.store, name).bytes())

    def write(self, name: Any, frame: bytes) -> None:
        import obstore

        obstore.put(self.store, name, frame)


class RawFolder(RawTier):
    """Objects in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def frames(self) -> list[Hashable]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def read(self, name: Any) -> bytes:
        return bytes(name.read_bytes())

    def write(self, name: Any, frame: bytes) -> None:
        name.write_bytes(frame)


class RawMooncake(RawTier):
    """Objects under a prefix, through a client of our own."""

    def __init__(self, server: MooncakeServer, client: Any, prefix: str) -> None:
        self.server = server
        self.client = client
        self.prefix = prefix

    def frames(self) -> list[Hashable]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics}/get_all_keys", timeout=5) as reply:
            names = reply.read().decode().split()
        return sorted(name for name in names if name.startswith(f"{self.prefix}/"))

    def read(self, name: Any) -> bytes:
        return bytes(self.client.get(name))

    def write(self, name: Any, frame: bytes) -> None:
        assert self.client.remove(name, True) == 0
        assert self.client.put(name, frame or b"?") == 0, "no object of Mooncake's is empty"
