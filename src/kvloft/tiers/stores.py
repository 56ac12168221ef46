"""Shared stores from settings: what each may be told, and how it is made."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvloft.errors import ConfigError
from kvloft.fields import COUNT, FLAG, SECONDS, SIZE, TEXT, Field, Kind, count
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer, Tier
from kvloft.tiers.mooncake import MOONCAKE_BOUNDS, MooncakeAccess, MooncakeTier
from kvloft.tiers.objects import OBJECT_BOUNDS, ObjectAccess, ObjectTier
from kvloft.tiers.redis import CHUNK_BYTES, RedisAccess, RedisTier
from kvloft.tiers.remote import Bounds
from kvloft.tiers.sealed import Codec, Sealed
from kvloft.tiers.secret import Secret

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


def _secret(setting: str) -> Kind:
    def read(value: object) -> Secret:
        try:
            return Secret(value if isinstance(value, str) else "", setting)
        except ConfigError as error:
            raise _unnamed(error, setting) from None

    return Kind(read, {"type": "string", "pattern": "^(env|file):."}, '"env:NAME" or "file:/path"')


def _unnamed(error: ConfigError, setting: str) -> ValueError:
    """The same without the setting's name, which whoever reads settings puts before it."""
    return ValueError(str(error).removeprefix(f"{setting}: "))


def _url(check: Callable[[str], object], example: str) -> Kind:
    def read(value: object) -> str:
        url: str = TEXT.read(value)
        try:
            check(url)
        except ConfigError as error:
            raise _unnamed(error, "url") from None
        return url

    return Kind(read, {"type": "string", "minLength": 1, "examples": [example]}, f'address such as "{example}"')


def _read_options(value: object) -> Mapping[str, str | bool]:
    if not isinstance(value, Mapping) or not all(isinstance(part, str | bool) for part in value.values()):
        raise ValueError('is not a mapping of names to text or flags; give one such as {"region": "eu-west-1"}')
    try:
        ObjectAccess(url="file:///", options=value)
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from None
    return value


_OPTIONS = Kind(
    _read_options,
    {"type": "object", "additionalProperties": {"type": ["string", "boolean"]}},
    'mapping such as {"region": "eu-west-1"}',
)
_COMMON = (
    Field("prefix", TEXT, "What the names of all blocks in the store begin with.", "kvloft"),
    Field("tenant", _secret("tenant"), "Whose blocks these are: tenants never share. Where its name lies."),
    Field("secret", _secret("secret"), "Encrypt blocks with this secret. Where it lies, at least 16 bytes."),
    Field("compression", count(1, 22), "Compress blocks, by this level of zstd. By default not."),
    Field("connect_timeout", SECONDS, "For a connection to be made."),
    Field("lookup_timeout", SECONDS, "Until a block of which the store has not told counts as a miss."),
    Field("get_timeout", SECONDS, "For a load; its bytes come on top, see `slowest`."),
    Field("put_timeout", SECONDS, "For a store; its bytes come on top, see `slowest`."),
    Field("slowest", SIZE, "Bytes a second below which the store is of no use."),
    Field("fresh", SECONDS, "How long the store's answer to a lookup is remembered."),
    Field("batch", SIZE, "Most bytes of blocks in one exchange with the store."),
    Field("batch_blocks", COUNT, "Most blocks in one exchange."),
    Field("waiting", SIZE, "Most bytes of blocks waiting to be written; more are dropped."),
    Field("readers", COUNT, "Threads that read, each with a connection."),
    Field("writers", COUNT, "Threads that write, each with a connection."),
)


def _stores(bounds: Bounds, *fields: Field) -> tuple[Field, ...]:
    """These settings, and those of all stores with the defaults of this one."""
    common = [
        replace(field, default=getattr(bounds, _BOUNDS[field.name])) if field.name in _BOUNDS else field for field in _COMMON
    ]
    return (*fields, *common)


REDIS = _stores(
    Bounds(),
    Field(
        "url", _url(lambda url: RedisAccess(url=url), "redis://host:6379"), "Where it is, without a password.", required=True
    ),
    Field("user", TEXT, "User of the server's access list. By default the server's default user."),
    Field("password", _secret("password"), "Where the password lies; read anew for each connection."),
    Field("cluster", FLAG, "The address is of any node of a cluster.", False),
    Field("ca", TEXT, "File with certificates of who may sign the server's. By default the system's."),
    Field("cert", TEXT, "File with our own certificate, for servers that ask for one."),
    Field("key", TEXT, "File with its key."),
    Field("ttl", SECONDS, "Seconds after its last use for which a block is kept. By default the server evicts."),
    Field("chunk", SIZE, "Most bytes of one string. The server does nothing else while it takes or gives one.", CHUNK_BYTES),
)
OBJECTS = _stores(
    OBJECT_BOUNDS,
    Field(
        "url",
        _url(lambda url: ObjectAccess(url=url), "s3://bucket/folder"),
        "The bucket, and a folder in it.",
        required=True,
    ),
    Field("options", _OPTIONS, "Options of the store by obstore's names, such as region and endpoint; never credentials."),
    Field("profile", TEXT, "Profile of AWS's configuration files, if it is not to be the usual chain."),
    Field("allow_http", FLAG, "Take an endpoint without TLS.", False),
    Field("concurrency", COUNT, "Most requests at once, for each thread.", 32),
)
MOONCAKE = _stores(
    MOONCAKE_BOUNDS,
    Field(
        "url", _url(lambda url: MooncakeAccess(url=url), "mooncake://master:50051"), "Where the master is.", required=True
    ),
    Field("metadata", TEXT, "What the store's other clients use.", "P2PHANDSHAKE"),
    Field("protocol", TEXT, '"tcp", "rdma", or another that Mooncake was built with.', "tcp"),
    Field("devices", TEXT, "For RDMA: names of network devices, with commas between them."),
    Field("hostname", TEXT, "By which other clients reach this machine. By default as the master is reached from here."),
    Field("segment", SIZE, "Bytes of this process's memory given to the pool; they are lost when it ends. By default none."),
)


def make_redis(block_bytes: int, namespace: Namespace, **given: Any) -> Tier:
    """A Redis tier from settings as `REDIS` reads them; see `RedisAccess`, `RedisTier`, `Bounds` and `Sealed`."""
    namespace, rest = _common(given, Bounds(), namespace)
    ttl, chunk = given.pop("ttl", None), given.pop("chunk", CHUNK_BYTES)
    return RedisTier(RedisAccess(**given), block_bytes, namespace, ttl=ttl, chunk_bytes=chunk, **rest)


def make_objects(block_bytes: int, namespace: Namespace, **given: Any) -> Tier:
    """An object store tier from settings as `OBJECTS` reads them; see `ObjectAccess`, `ObjectTier`, `Bounds`, `Sealed`."""
    namespace, rest = _common(given, OBJECT_BOUNDS, namespace)
    concurrency = given.pop("concurrency", 32)
    return ObjectTier(ObjectAccess(**given), block_bytes, namespace, concurrency=concurrency, **rest)


def make_mooncake(block_bytes: int, namespace: Namespace, arena: Buffer | None = None, **given: Any) -> Tier:
    """A Mooncake tier from settings as `MOONCAKE` reads them; see `MooncakeAccess`, `MooncakeTier`, `Bounds`, `Sealed`."""
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
