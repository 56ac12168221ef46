"""What a block's bytes mean, and its name at rest: the namespace fingerprint and the key digest."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kvloft.errors import ConfigError
from kvloft.request import Key

DIGEST_BYTES = 32
"""Length of a fingerprint and of a key digest. Cryptographic: two keys that share one are not to be found."""

_FORMAT = 1
"""Part of every fingerprint: raise it when the canonical form changes, and old blocks are found no more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Namespace:
    """Everything that changes the bytes of a block or their meaning. Blocks are shared only between equal namespaces.

    Args:
        model: model id or path, as the engine was given it.
        revision: of the model's repository (commit, tag), if known.
        weights: digest of the weights, when it can be had.
        dtype: of the cache as stored ("bfloat16", "fp8_e4m3", ...), its quantisation included.
        layout: order of the dimensions in a stored block ("NHD", "HND", a name of the worker's own layout).
        geometry: sizes of the layout: layers, KV heads, head size, KV groups, bytes of a block; by name.
        rope: rotary embedding: theta, scaling type and factors; by name. Values may nest.
        parallel: tensor, pipeline and other parallel sizes, and which ranks' parts a block holds in what order; by name.
        block_size: tokens of a block.
        hash_algorithm: of the engine's prefix hashing.
        hash_seed: its seed.
        tenant: salt that keeps tenants apart. It is never written down, only its digest.
        extra: whatever else tells these blocks apart (adapters, engine version, ...); by name.

    Raises:
        ConfigError: a value is neither a plain scalar, nor a list or mapping of such.
    """

    model: str
    revision: str | None = None
    weights: str | None = None
    dtype: str = ""
    layout: str = ""
    geometry: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 0
    hash_algorithm: str = ""
    hash_seed: str | int | None = None
    tenant: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name in (f.name for f in fields(self)):
            problems += _unfit(getattr(self, name), f"namespace.{name}")
        if problems:
            raise ConfigError(problems)

    def __eq__(self, other: object) -> bool:
        return self.fingerprint == other.fingerprint if isinstance(other, Namespace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def fingerprint(self) -> bytes:
        """Digest of all fields, `DIGEST_BYTES` long; equal for equal namespaces, in every process and on every machine."""
        return hashlib.blake2b(_canonical({"format": _FORMAT, **self.facts()}), digest_size=DIGEST_BYTES).digest()

    @property
    def name(self) -> str:
        """The fingerprint's first 16 bytes in hex: what its directory or prefix in a store is called."""
        return self.fingerprint.hex()[:32]

    def facts(self) -> dict[str, Any]:
        """All fields, fit to be written down and read: the tenant's salt only as a digest."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.tenant:
            facts["tenant"] = hashlib.blake2b(self.tenant.encode(), digest_size=16, person=b"kvloft tenant").hexdigest()
        return facts

    def to_json(self) -> str:
        """The facts as JSON for people and for `describe_facts`, to be kept beside the data."""
        return json.dumps({"fingerprint": self.fingerprint.hex(), **self.facts()}, indent=2, sort_keys=True) + "\n"

    def digester(self) -> Callable[[Key], bytes]:
        """A function from a key to its digest in this namespace; see `digest_key`. Cheaper than `digest_key` in a loop."""
        start = hashlib.blake2b(digest_size=DIGEST_BYTES, key=self.fingerprint)

        def digest(key: Key) -> bytes:
            h = start.copy()
            h.update(_key_bytes(key))
            return h.digest()

        return digest


def digest_key(namespace: Namespace, key: Key) -> bytes:
    """A key's name at rest: a keyed BLAKE2b of its bytes, so that equal keys of two namespaces have nothing in common.

    Args:
        namespace: the block's.
        key: bytes, str, int, or a tuple of these.

    Raises:
        ConfigError: the key is of another type, which has no canonical bytes.
    """
    return namespace.digester()(key)


def describe_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A namespace in words: label and value of each fact that is set, the parts of mappings one by one."""
    lines: list[tuple[str, str]] = []
    for name, label in _LABELS.items():
        value = facts.get(name)
        if value in (None, "", {}, []) or (name == "block_size" and not value):
            continue
        if name == "tenant":
            lines.append((label, f"salted (digest {str(value)[:8]})"))
        elif isinstance(value, Mapping):
            lines += [(f"{label}: {part}", _worded(value[part])) for part in sorted(value)]
        else:
            lines.append((label, f"{value} tokens" if name == "block_size" else _worded(value)))
    return lines


_LABELS = {
    "model": "model",
    "revision": "revision",
    "weights": "weights digest",
    "dtype": "KV data type",
    "layout": "KV layout",
    "geometry": "geometry",
    "rope": "rotary embedding",
    "parallel": "parallel layout",
    "block_size": "block size",
    "hash_algorithm": "prefix hash",
    "hash_seed": "hash seed",
    "tenant": "tenant",
    "extra": "extra",
}


def _worded(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _unfit(value: Any, where: str) -> list[str]:
    if value is None or isinstance(value, str | int | float | bool):
        return []
    if isinstance(value, Mapping):
        wrong = [
            f"{where}: the name {name!r} is no string; use strings as names" for name in value if not isinstance(name, str)
        ]
        return wrong or [problem for name, part in value.items() for problem in _unfit(part, f"{where}.{name}")]
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [problem for at, part in enumerate(value) for problem in _unfit(part, f"{where}[{at}]")]
    return [f"{where}: {value!r} is a {type(value).__name__}; use text, numbers, true/false, lists and mappings of these"]


def _plain(value: Any) -> Any:
    """JSON's own types: mappings as dicts, sequences as lists, whole numbers without a point, so that equal values are
    written equally."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _canonical(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(_plain(facts), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _key_bytes(key: Key) -> bytes:
    """Different for different keys: a letter for the type, then the value; tuples with the length of each part."""
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, tuple):
        parts = [_key_bytes(part) for part in key]
        return b"t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    raise ConfigError(f"key {key!r} is a {type(key).__name__}; only bytes, str, int and tuples of these have a name at rest")
