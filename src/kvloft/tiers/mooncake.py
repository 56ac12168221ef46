"""Mooncake Store as a tier: a pool of memory on many machines, reached by RDMA or TCP.

Blocks go straight between the pool and the buffers of the caller, header and block in one transfer; nothing is copied here.
The timeouts of the library bound every call, so it is given short ones before it starts: by default it would wait 30 seconds
for a master that does not answer, and 20 times that, with the lock of Python held, when it connects.
"""

import importlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from kvloft.errors import ConfigError, MissingExtra, TierError
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer, Status
from kvloft.tiers.buffers import as_array
from kvloft.tiers.frame import HEADER_BYTES
from kvloft.tiers.remote import Bounds, Frame, RemoteTier, Store
from kvloft.tiers.sealed import Codec, Plain
from kvloft.tiers.secret import refuse_password

MOONCAKE_BOUNDS = Bounds(batch_blocks=4)
"""Blocks of one exchange that cannot be moved are waited for one after the other: so few that all of them end in time."""
_FOREIGN: Frame = (b"", memoryview(b""))
# The library's codes.
_FULL = -200
_SMALL = -600
_ABSENT = (-703, -704)
"""Being written, or not there."""
_EXISTS = -705
_NOT_MOVED = -800
_RETRY_SECONDS = 1.0
_LOCAL_BUFFER_BYTES = 16 << 20
"""Of the library's own, for calls that we do not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeAccess:
    """Where a Mooncake Store is and how its bytes are reached. Safe to print.

    Args:
        url: "mooncake://master:port".
        metadata: what the store's other clients use: "P2PHANDSHAKE", "http://host:port/metadata", "etcd://...".
        protocol: "tcp", "rdma", or another that Mooncake was built with.
        devices: for RDMA: names of network devices, with commas between them.
        hostname: by which other clients reach this machine; None: as the master is reached from here.
        segment_bytes: of this process's memory given to the pool. They are lost when it ends: 0, and store clients beside
            the engines, are what makes blocks outlive an engine.

    Raises:
        ConfigError: the URL is none, or holds a password.
    """

    url: str
    metadata: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    devices: str = ""
    hostname: str | None = None
    segment_bytes: int = 0

    def __post_init__(self) -> None:
        refuse_password(self.url, "url")
        refuse_password(self.metadata, "metadata")
        parts = urlsplit(self.url)
        if parts.scheme != "mooncake" or not parts.hostname or not parts.port:
            raise ConfigError(f'url: {self.url!r} is no address of a Mooncake master; write "mooncake://host:port"')

    @property
    def master(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)


class MooncakeStore(Store):
    """Blocks in a Mooncake Store. Its client is shared by all tiers of this process that use the same one.

    The network has to know the memory that it reads and writes. With an `arena`, all blocks lie in it, and nothing is
    copied. Without, they pass through memory of this store's own.

    Args:
        access: where it is.
        bounds: times for connections and calls, number of threads.
        block_bytes: of each block.
        longest: bytes of a block at rest, at most.
        arena: memory that all blocks come from and go to.

    Raises:
        MissingExtra: Mooncake, or a library that it needs, is not installed.
    """

    def __init__(
        self, access: MooncakeAccess, bounds: Bounds, block_bytes: int, longest: int, arena: Buffer | None = None
    ) -> None:
        self.direct_put = self.direct_get = arena is not None
        self._batch_blocks = max(1, min(bounds.batch_blocks, bounds.batch_bytes // block_bytes))
        rows = (bounds.readers + bounds.writers) * self._batch_blocks
        self._rows = np.zeros((rows, HEADER_BYTES + (0 if arena is not None else longest)), np.uint8)
        self._of_thread = threading.local()
        self._given = itertools.count(step=self._batch_blocks)
        self._client = _Client.of(access, bounds)
        self._memory = [self._rows.reshape(-1), *([] if arena is None else [as_array(arena)])]
        self._client.introduce(self._memory)

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        found: list[int] = self._client.connected().batch_is_exist(list(names))
        if failed := [code for code in found if code < 0]:
            raise _error("look up", failed)
        return [code == 1 for code in found]

    def put(self, names: Sequence[str], frames: Sequence[Frame]) -> Sequence[Status]:
        store = self._client.connected()
        addresses, lengths = [], []
        for row, (header, payload) in zip(self._mine(len(names)), frames, strict=True):
            row[:HEADER_BYTES] = as_array(header)
            block = as_array(payload)
            if not self.direct_put:
                np.copyto(row[HEADER_BYTES:][: block.size], block)
                block = row[HEADER_BYTES:][: block.size]
            addresses.append([_address(row), _address(block)])
            lengths.append([HEADER_BYTES, block.size])
        codes: list[int] = store.batch_put_from_multi_buffers(list(names), addresses, lengths)
        failed = [code for code in codes if code not in (0, _FULL, _EXISTS)]
        if len(failed) == len(codes):
            raise _error("write", failed)
        return [Status.DROPPED if code == _FULL else Status.FAILED if code in failed else Status.OK for code in codes]

    def get(self, names: Sequence[str], buffers: Sequence[Buffer]) -> Sequence[Frame | None]:
        store = self._client.connected()
        rows = self._mine(len(names))
        codes: list[int]
        if self.direct_get:
            blocks = [[_address(row), _address(as_array(buffer))] for row, buffer in zip(rows, buffers, strict=True)]
            lengths = [[HEADER_BYTES, buffer.nbytes] for buffer in buffers]
            codes = store.batch_get_into_multi_buffers(list(names), blocks, lengths)
        else:
            codes = store.batch_get_into(list(names), [_address(row) for row in rows], [row.size for row in rows])
        frames: list[Frame | None] = []
        failed = []
        for name, row, buffer, code in zip(names, rows, buffers, codes, strict=True):
            if code > 0:
                header, rest = row[:HEADER_BYTES].data, row[HEADER_BYTES : max(code, HEADER_BYTES)].data
                frames.append((header[:code], buffer if self.direct_get else rest))
            elif code == _SMALL or (code == _NOT_MOVED and self._is_foreign(store, name, buffer)):
                frames.append(_FOREIGN)
            else:
                frames.append(None)
                failed += [] if code in _ABSENT else [code]
        # A machine of the pool that is gone takes its blocks along: misses, as long as others are still reached.
        if failed and not any(frames):
            raise _error("read", failed)
        return frames

    def touch(self, names: Sequence[str]) -> None:
        """To be asked for is what renews a block's lease."""
        self.exists(names)

    def remove(self, names: Sequence[str]) -> None:
        codes: list[int] = self._client.connected().batch_remove(list(names), True)
        if failed := [code for code in codes if code < 0 and code not in _ABSENT]:
            raise _error("remove", failed)

    def close(self) -> None:
        self._client.forget(self._memory)
        self._memory.clear()
        self._client.release()

    def _mine(self, count: int) -> npt.NDArray[np.uint8]:
        """Rows that only this thread uses."""
        first: int | None = getattr(self._of_thread, "first", None)
        if first is None:
            first = self._of_thread.first = next(self._given)
        return self._rows[first : first + self._batch_blocks][:count]

    def _is_foreign(self, store: Any, name: str, buffer: Buffer) -> bool:
        """Whether a block was not moved because it is not as long as ours are: the library does not tell."""
        size: int = store.get_size(name)
        return size >= 0 and size != HEADER_BYTES + buffer.nbytes


class MooncakeTier(RemoteTier):
    """Blocks in a Mooncake Store, shared by all who use the same master, prefix and namespace.

    What the store evicts is a miss; what it has no room for is a drop.

    Args:
        access: where it is.
        block_bytes: of each block.
        namespace: of the blocks.
        name: what stats and metrics call it.
        bounds: times and sizes.
        codec: how blocks are changed before they are stored.
        arena: the host memory that blocks come from and go to; then nothing is copied, unless the codec changes blocks.
        prefix: what all names begin with.

    Raises:
        MissingExtra: Mooncake, or a library that it needs, is not installed.
    """

    def __init__(
        self,
        access: MooncakeAccess,
        block_bytes: int,
        namespace: Namespace,
        *,
        name: str = "mooncake",
        bounds: Bounds | None = None,
        codec: Codec | None = None,
        arena: Buffer | None = None,
        prefix: str = "kvloft",
    ) -> None:
        bounds = bounds or MOONCAKE_BOUNDS
        codec = codec or Plain()
        if arena is not None and not isinstance(codec, Plain):
            arena = None
        store = MooncakeStore(access, bounds, block_bytes, codec.longest(block_bytes), arena)
        super().__init__(store, block_bytes, namespace, name=name, bounds=bounds, codec=codec, prefix=prefix)


class _Client:
    """The library's client of one store, for this process: connects when first used, and again until it succeeds."""

    _all: "dict[MooncakeAccess, _Client]" = {}  # noqa: RUF012
    _all_lock = threading.Lock()

    def __init__(self, access: MooncakeAccess, bounds: Bounds) -> None:
        _set_timeouts(bounds)
        try:
            self._library: Any = importlib.import_module("mooncake.store")
        except ImportError as error:
            raise MissingExtra(
                "mooncake", f"a Mooncake tier (on Debian, libibverbs1 librdmacm1 libnuma1 too; {error})"
            ) from error
        self._access = access
        self._seconds = bounds.connect
        self._lock = threading.Lock()
        self._store: Any = None
        self._next = 0.0
        self._known: list[npt.NDArray[np.uint8]] = []
        self._users = 0

    @classmethod
    def of(cls, access: MooncakeAccess, bounds: Bounds) -> "_Client":
        """The client for this store; `release` it when it is needed no more."""
        with cls._all_lock:
            client = cls._all.get(access) or cls(access, bounds)
            cls._all[access] = client
            client._users += 1
            return client

    def release(self) -> None:
        with self._all_lock:
            self._users -= 1
            if self._users:
                return
            del self._all[self._access]
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def connected(self) -> Any:
        """The library's object.

        Raises:
            TierError: the master cannot be reached.
        """
        with self._lock:
            if self._store is None:
                if time.monotonic() < self._next:
                    raise TierError(f"{self._access.url}: not connected; tried a moment ago")
                self._next = time.monotonic() + _RETRY_SECONDS
                self._store = self._connect()
                self._register(self._known)
            return self._store

    def introduce(self, memory: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Make memory known to the network. May wait for the network if it is connected."""
        with self._lock:
            self._known += memory
            if self._store is not None:
                self._register(memory)

    def forget(self, memory: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Let go of memory. May wait for the network if it is connected."""
        with self._lock:
            gone = {_address(each) for each in memory}
            self._known = [each for each in self._known if _address(each) not in gone]
            if self._store is not None:
                for address in gone:
                    self._store.unregister_buffer(address)

    def _register(self, memory: Iterable[npt.NDArray[np.uint8]]) -> None:
        for each in memory:
            if each.size and (code := self._store.register_buffer(_address(each), each.nbytes)) != 0:
                raise TierError(f"{self._access.url}: the network does not take {each.nbytes} bytes of memory (code {code})")

    def _connect(self) -> Any:
        access, (host, port) = self._access, self._access.master
        ours = self._probe(host, port)
        store = self._library.MooncakeDistributedStore()
        code = store.setup(
            access.hostname or ours,
            access.metadata,
            access.segment_bytes,
            _LOCAL_BUFFER_BYTES,
            access.protocol,
            access.devices,
            f"{host}:{port}",
        )
        if code != 0:
            raise TierError(f"{access.url}: Mooncake's client does not start (code {code}); its log says why")
        return store

    def _probe(self, host: str, port: int) -> str:
        """Whether somebody answers at all, since the library's own first call stops the whole process while it waits.

        What is sent is no request of Mooncake's; a master that is alive closes the connection upon it.
        """
        try:
            with socket.create_connection((host, port), self._seconds) as probe:
                probe.settimeout(self._seconds)
                probe.sendall(bytes(64))
                probe.recv(1)
                ours: str = probe.getsockname()[0]
                return ours
        except ConnectionResetError:
            return host
        except OSError as error:
            raise TierError(f"{self._access.url}: the master does not answer: {error}") from error


def _set_timeouts(bounds: Bounds) -> None:
    """Tell the library, which reads them when it is loaded, unless whoever started this process has."""
    seconds = ceil(min(bounds.get, bounds.put) / 2)
    for name, value in {
        "MC_STORE_CLIENT_SETUP_RETRIES": 1,
        "MC_RPC_CONNECT_TIMEOUT_MS": round(bounds.connect * 1000),
        "MC_RPC_TIMEOUT_MS": seconds * 1000,
        "MC_TCP_PROGRESS_TIMEOUT_SEC": seconds,
    }.items():
        os.environ.setdefault(name, str(value))


def _address(memory: npt.NDArray[np.uint8]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


def _error(what: str, codes: Sequence[int]) -> TierError:
    return TierError(f"Mooncake cannot {what} {len(codes)} blocks (codes {', '.join(map(str, sorted(set(codes))))})")
