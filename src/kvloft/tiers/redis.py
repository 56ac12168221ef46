"""Redis, Valkey, and whatever else speaks their protocol, as a tier.

A block is one string, or, where it is longer than `chunk_bytes`, several: `NAME` holds the first part, `{NAME}:TOKEN:1` and
so on the others, all in the same slot of a cluster. The first part is led by the number of parts and the token, random for
each writer, so that parts of two writers never mix. `NAME` is written last, and only if it is not there (SET NX): a block is
there whole or not at all, whatever the server evicts.
"""

import secrets
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer, Status
from kvloft.tiers.frame import HEADER_BYTES
from kvloft.tiers.remote import Bounds, Frame, RemoteTier, Store
from kvloft.tiers.sealed import Codec
from kvloft.tiers.secret import Secret, refuse_password

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

    _Client: TypeAlias = "Redis | RedisCluster"

_LEAD = struct.Struct("<I8s")
"""Number of parts, token."""
CHUNK_BYTES = 256 << 10
"""Most bytes of one string, unless told otherwise."""
_READ_BYTES = 256 << 10
"""What one receive asks of the socket."""
_WINDOW_BYTES = 512 << 10
"""Most bytes of replies under way: above a mebibyte the library takes five times as long for each byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAccess:
    """Where a Redis is and who we are to it. Safe to print.

    Args:
        url: "redis://host:port/db", "rediss://..." for TLS, "unix:///path"; without a password.
        user: ACL user; None for the server's default user.
        password: where the password lies, read anew for each connection.
        cluster: the URL is of any node of a cluster.
        ca: certificates of who may sign the server's; None for the system's.
        cert: our own certificate, for servers that ask for one.
        key: its key.

    Raises:
        ConfigError: the URL is none, or holds a password.
    """

    url: str
    user: str | None = None
    password: Secret | None = None
    cluster: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        refuse_password(self.url, "url")
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError(
                f'url: {self.url!r} is no address of a Redis; write "redis://host:port", or "rediss://" for TLS'
            )


class RedisStore(Store):
    """Blocks in a Redis or a cluster of them. Connects when first used, and again whenever a connection was lost.

    Args:
        access: where it is.
        bounds: times for connections and replies, number of connections.
        ttl: seconds after its last use for which a block is kept; None leaves that to the server's eviction.
        chunk_bytes: most bytes of one string. The server does nothing else while it takes or gives one.

    Raises:
        MissingExtra: redis-py is not installed.
    """

    direct_put = True

    def __init__(
        self, access: RedisAccess, bounds: Bounds, ttl: float | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        try:
            import redis.exceptions
        except ImportError as error:
            raise MissingExtra("redis", "a Redis tier") from error
        self._errors = redis.exceptions
        self._access = access
        self._bounds = bounds
        self._ttl = None if ttl is None else max(1, round(ttl * 1000))
        self._chunk = max(chunk_bytes, _LEAD.size + HEADER_BYTES)
        self._connecting = threading.Lock()
        self._client: _Client | None = None

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        return [self._good(reply) == 1 for reply in self._send(("EXISTS", name) for name in names)]

    def put(self, names: Sequence[str], frames: Sequence[Frame]) -> Sequence[Status]:
        expire = () if self._ttl is None else ("PX", self._ttl)
        commands: list[tuple[Any, ...]] = []
        parts: list[list[str]] = []
        """Names of each block's parts but the first."""
        for name, (header, payload) in zip(names, frames, strict=True):
            first = self._chunk - _LEAD.size - len(header)
            starts = range(first, payload.nbytes, self._chunk)
            token = secrets.token_bytes(8)
            parts.append([_part(name, token, index) for index in range(1, len(starts) + 1)])
            for part, start in zip(parts[-1], starts, strict=True):
                commands.append(("SET", part, payload[start : start + self._chunk], *expire))
            lead = _LEAD.pack(1 + len(starts), token)
            commands.append(("SET", name, b"".join((lead, header, payload[:first])), "NX", *expire))
        replies = iter(self._send(commands))
        statuses, useless = [], []
        for name, extra in zip(names, parts, strict=True):
            others, last = [next(replies) for _ in extra], next(replies)
            # None: somebody else was faster, and what they wrote is whole.
            statuses.append(Status.OK if last is None else self._judge([*others, last]))
            if last is None or statuses[-1] is not Status.OK:
                useless += extra
            if statuses[-1] is not Status.OK and not isinstance(last, Exception):
                useless.append(name)
        self._send(("UNLINK", name) for name in useless)
        return statuses

    def get(self, names: Sequence[str], buffers: Sequence[Buffer]) -> Sequence[Frame | None]:
        part = min(self._chunk, HEADER_BYTES + max(buffer.nbytes for buffer in buffers))
        values = self._read(names, part)
        wanted = [_others(name, value) for name, value in zip(names, values, strict=True)]
        others = iter(self._read([part for parts in wanted for part in parts], part))
        frames: list[Frame | None] = []
        for value, parts in zip(values, wanted, strict=True):
            found = [part for part in (value, *(next(others) for _ in parts)) if part is not None]
            frames.append(_join(found) if len(found) == 1 + len(parts) else None)
        return frames

    def touch(self, names: Sequence[str]) -> None:
        command = ("TOUCH",) if self._ttl is None else ("PEXPIRE",)
        tail = () if self._ttl is None else (self._ttl,)
        leads = self._send(("GETRANGE", name, 0, _LEAD.size - 1) for name in names)
        parts = [part for name, lead in zip(names, leads, strict=True) for part in _others(name, self._good(lead))]
        self._send((*command, name, *tail) for name in [*parts, *names])

    def remove(self, names: Sequence[str]) -> None:
        leads = self._send(("GETRANGE", name, 0, _LEAD.size - 1) for name in names)
        parts = [part for name, lead in zip(names, leads, strict=True) for part in _others(name, self._good(lead))]
        for reply in self._send(("UNLINK", name) for name in [*names, *parts]):
            self._good(reply)

    def close(self) -> None:
        with self._connecting:
            if self._client is not None:
                self._client.close()

    def _read(self, names: Sequence[str], nbytes: int) -> list[bytes | None]:
        """Values of about so many bytes each, not too many of them under way."""
        window = max(1, _WINDOW_BYTES // nbytes)
        return [
            self._good(reply)
            for at in range(0, len(names), window)
            for reply in self._send(("GET", name) for name in names[at : at + window])
        ]

    def _judge(self, replies: Sequence[Any]) -> Status:
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if not errors:
            return Status.OK
        full = all(isinstance(error, self._errors.OutOfMemoryError) for error in errors)
        return Status.DROPPED if full else Status.FAILED

    def _good(self, reply: Any) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _send(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """All commands in one go, and their replies, errors of single commands among them."""
        with self._connect().pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute(raise_on_error=False) if len(pipeline) else []

    def _connect(self) -> "_Client":
        with self._connecting:
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> "_Client":
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.cluster import RedisCluster
        from redis.retry import Retry

        settings: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": self._bounds.connect,
            "socket_timeout": min(self._bounds.get, self._bounds.put),
            "socket_read_size": _READ_BYTES,
            "socket_keepalive": True,
        }
        if self._access.user is not None or self._access.password is not None:
            settings["credential_provider"] = _credentials(self._access)
        if self._access.url.startswith("rediss://"):
            settings |= {"ssl_ca_certs": self._access.ca, "ssl_certfile": self._access.cert, "ssl_keyfile": self._access.key}
        # Once more at once: a restarted server has closed the connections of the pool. What timed out is not repeated.
        settings["retry"] = Retry(NoBackoff(), 1, supported_errors=(self._errors.ConnectionError,))
        return (RedisCluster if self._access.cluster else Redis).from_url(self._access.url, **settings)


class RedisTier(RemoteTier):
    """Blocks in a Redis, Valkey or a cluster of them, shared by all who use the same server, prefix and namespace.

    Give the server `maxmemory` and the policy `allkeys-lru` or `allkeys-lfu`: what it evicts is a miss. With `noeviction` a
    full server's refusals are drops.

    Args:
        access: where it is.
        block_bytes: of each block.
        namespace: of the blocks.
        name: what stats and metrics call it.
        bounds: times and sizes.
        codec: how blocks are changed before they are stored.
        ttl: seconds after its last use for which a block is kept; None leaves that to the server's eviction.
        chunk_bytes: most bytes of one string.
        prefix: what all names begin with.

    Raises:
        MissingExtra: redis-py is not installed.
    """

    def __init__(
        self,
        access: RedisAccess,
        block_bytes: int,
        namespace: Namespace,
        *,
        name: str = "redis",
        bounds: Bounds | None = None,
        codec: Codec | None = None,
        ttl: float | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        prefix: str = "kvloft",
    ) -> None:
        bounds = bounds or Bounds()
        store = RedisStore(access, bounds, ttl, chunk_bytes)
        super().__init__(store, block_bytes, namespace, name=name, bounds=bounds, codec=codec, prefix=prefix)


def _credentials(access: RedisAccess) -> Any:
    from redis.credentials import CredentialProvider

    class FromSecret(CredentialProvider):
        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            password = access.password.read().decode() if access.password is not None else ""
            return (password,) if access.user is None else (access.user, password)

    return FromSecret()


def _part(name: str, token: bytes, index: int) -> str:
    return f"{{{name}}}:{token.hex()}:{index}"


def _others(name: str, lead: bytes | None) -> list[str]:
    """Names of a block's parts but the first, of which `lead` is the beginning."""
    if lead is None or len(lead) < _LEAD.size:
        return []
    count, token = _LEAD.unpack_from(lead)
    return [_part(name, token, index) for index in range(1, count)] if count <= 1 << 16 else []


def _join(values: Sequence[bytes]) -> Frame:
    """The frame in a block's parts. If there is only one, nothing is copied."""
    whole = memoryview(values[0])[_LEAD.size :]
    if len(values) > 1:
        joined = np.empty(sum(map(len, values)) - _LEAD.size, np.uint8)
        at = -_LEAD.size
        for part in values:
            start = max(at, 0)
            at += len(part)
            joined[start:at] = np.frombuffer(part, np.uint8)[start - at :]
        whole = joined.data
    return whole[:HEADER_BYTES], whole[HEADER_BYTES:]
