"""Shared stores from settings: what each may be told, and how it is made."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvloft.config import parse_size
from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer, Tier
from kvloft.tiers.remote import Bounds
from kvloft.tiers.sealed import Codec, Sealed
from kvloft.tiers.secret import Secret
from kvloft.tiers.values import read_count, read_flag, read_seconds, read_text

_BOUNDS = {
    "connect_timeout": "connect",
    "lookup_timeout": "lookup",
    "get_timeout": "get",
    "put_timeout": "put",
    "slowest": "slowest",
    "fresh": "fresh",
    "batch": "batch_bytes",
    "batch_blocks": "batch_blocks",
    "waiting": "waiting_bytes",
    "readers": "readers",
    "writers": "writers",
}
"""What people write, and the field of `Bounds` that it is."""


def _secret(setting: str) -> Callable[[object], Secret]:
    def read(value: object) -> Secret:
        try:
            return Secret(value if isinstance(value, str) else "", setting)
        except ConfigError as error:
            # Who reads settings puts the name of this one before it.
            raise ValueError(str(error).removeprefix(f"{setting}: ")) from None

    return read


def _options(value: object) -> Mapping[str, str | bool]:
    if isinstance(value, Mapping) and all(isinstance(part, str | bool) for part in value.values()):
        return value
    raise ValueError('is not a mapping of names to text or flags; give one such as {"region": "eu-west-1"}')


_COMMON: dict[str, Callable[[object], Any]] = {
    "prefix": read_text,
    "tenant": _secret("tenant"),
    "secret": _secret("secret"),
    "compression": read_count,
    "connect_timeout": read_seconds,
    "lookup_timeout": read_seconds,
    "get_timeout": read_seconds,
    "put_timeout": read_seconds,
    "slowest": parse_size,
    "fresh": read_seconds,
    "batch": parse_size,
    "batch_blocks": read_count,
    "waiting": parse_size,
    "readers": read_count,
    "writers": read_count,
}
REDIS: dict[str, Callable[[object], Any]] = {
    "url": read_text,
    "user": read_text,
    "password": _secret("password"),
    "cluster": read_flag,
    "ca": read_text,
    "cert": read_text,
    "key": read_text,
    "ttl": read_seconds,
    "chunk": parse_size,
    **_COMMON,
}
OBJECTS: dict[str, Callable[[object], Any]] = {
    "url": read_text,
    "options": _options,
    "profile": read_text,
    "allow_http": read_flag,
    "concurrency": read_count,
    **_COMMON,
}
MOONCAKE: dict[str, Callable[[object], Any]] = {
    "url": read_text,
    "metadata": read_text,
    "protocol": read_text,
    "devices": read_text,
    "hostname": read_text,
    "segment": parse_size,
    **_COMMON,
}


def make_redis(block_bytes: int, namespace: Namespace, **given: Any) -> Tier:
    """A Redis tier from settings as `REDIS` reads them; see `RedisAccess`, `RedisTier`, `Bounds` and `Sealed`."""
    from kvloft.tiers.redis import CHUNK_BYTES, RedisAccess, RedisTier

    namespace, rest = _common(given, Bounds(), namespace)
    ttl, chunk = given.pop("ttl", None), given.pop("chunk", CHUNK_BYTES)
    return RedisTier(RedisAccess(**given), block_bytes, namespace, ttl=ttl, chunk_bytes=chunk, **rest)


def make_objects(block_bytes: int, namespace: Namespace, **given: Any) -> Tier:
    """An object store tier from settings as `OBJECTS` reads them; see `ObjectAccess`, `ObjectTier`, `Bounds`, `Sealed`."""
    from kvloft.tiers.objects import OBJECT_BOUNDS, ObjectAccess, ObjectTier

    namespace, rest = _common(given, OBJECT_BOUNDS, namespace)
    concurrency = given.pop("concurrency", 32)
    return ObjectTier(ObjectAccess(**given), block_bytes, namespace, concurrency=concurrency, **rest)


def make_mooncake(block_bytes: int, namespace: Namespace, arena: Buffer | None = None, **given: Any) -> Tier:
    """A Mooncake tier from settings as `MOONCAKE` reads them; see `MooncakeAccess`, `MooncakeTier`, `Bounds`, `Sealed`."""
    from kvloft.tiers.mooncake import MOONCAKE_BOUNDS, MooncakeAccess, MooncakeTier

    namespace, rest = _common(given, MOONCAKE_BOUNDS, namespace)
    given["segment_bytes"] = given.pop("segment", 0)
    return MooncakeTier(MooncakeAccess(**given), block_bytes, namespace, arena=arena, **rest)


def type_of(url: str) -> str:
    """The type of tier for an address, by its scheme; "objects" if it is nobody else's."""
    scheme = url.split("://")[0]
    if scheme in ("redis", "rediss", "unix"):
        return "redis"
    return "mooncake" if scheme == "mooncake" else "objects"


def _common(given: dict[str, Any], bounds: Bounds, namespace: Namespace) -> tuple[Namespace, dict[str, Any]]:
    """What all stores are told, taken out of `given`: the namespace with its tenant, and what all tiers take."""
    changed = {field: given.pop(name) for name, field in _BOUNDS.items() if name in given}
    tenant: Secret | None = given.pop("tenant", None)
    secret: Secret | None = given.pop("secret", None)
    compression: int | None = given.pop("compression", None)
    if tenant is not None:
        namespace = replace(namespace, tenant=tenant.read().decode())
    codec: Codec | None = None
    if secret is not None or compression is not None:
        codec = Sealed(namespace, secret=secret, compression=compression)
    return namespace, {"bounds": replace(bounds, **changed), "codec": codec, "prefix": given.pop("prefix", "kvloft")}
