"""Tiers from settings: `{"type": "disk", "path": ..., "capacity": "200GiB"}` as people write them in JSON or TOML."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from kvloft.config import Share, format_size, nearest, shown
from kvloft.errors import ConfigError
from kvloft.fields import COUNT, FLAG, SECONDS, SIZE_OR_SHARE, TEXT, Field, Kind, constant, object_schema, read_fields
from kvloft.keys import Namespace
from kvloft.plugins import TIERS, load_plugin, plugin_names
from kvloft.policies import is_policy, policy_names
from kvloft.tiers import stores
from kvloft.tiers.base import Buffer, Tier

_EXAMPLE = '[{"type": "disk", "path": "/var/cache/kvloft", "capacity": "200GiB"}]'


class TierPlan(NamedTuple):
    """A tier that has been described rightly and can be opened.

    Args:
        name: what metrics and per-request filters call it.
        label: text from the settings that tells its blocks from those of other models; see `Namespace`.
        type: of its kind, such as "disk".
        settings: those given, read.
        make: makes the tier from them, but for its name.
        takes_arena: whether it can be told in what memory all blocks will lie.
    """

    name: str
    label: str
    type: str
    settings: Mapping[str, Any]
    make: Callable[..., Tier]
    takes_arena: bool = False

    def __str__(self) -> str:
        """In words: name, place and size."""
        place = self.settings.get("path") or self.settings.get("url") or ""
        capacity = self.settings.get("capacity")
        size = f"up to {format_size(capacity) if isinstance(capacity, int) else capacity}" if capacity is not None else ""
        return " ".join(str(part) for part in (self.name, place, size) if part)

    def open(self, block_bytes: int, namespace: Namespace, arena: Buffer | None = None) -> Tier:
        """Make the tier.

        Args:
            block_bytes: of each block.
            namespace: of the blocks.
            arena: memory in which the buffers of all jobs will lie, if that is known.
        """
        memory = {"arena": arena} if self.takes_arena else {}
        tier = self.make(block_bytes=block_bytes, namespace=namespace, **self.settings, **memory)
        tier.name = self.name
        return tier


class TierType(NamedTuple):
    """A type of tier that settings can name: what it is, what it may be told, and how it is made."""

    meaning: str
    fields: Sequence[Field]
    make: Callable[..., Tier]
    takes_arena: bool = False


def read_tiers(given: object, where: str = "tiers") -> list[TierPlan]:
    """Plans for the tiers of a list of settings.

    Each has a `type`, and may have a `name` (by default its type) and a `namespace` (a label for its blocks). A type that
    is none of kvloft's is one that a plug-in offers, or the name of a class in `module_path`; that `Tier` class is called as
    `Class(block_bytes=..., namespace=..., **settings)`.

    Raises:
        ConfigError: naming every setting that is wrong.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        # What was given is not repeated, here and below: it may hold a secret.
        raise ConfigError(f"{where}: a {type(given).__name__} is not a list of tiers; give one such as {_EXAMPLE}")
    plans: list[TierPlan] = []
    problems: list[str] = []
    for at, settings in enumerate(given):
        try:
            plan = read_tier(settings, f"{where}[{at}]")
        except ConfigError as error:
            problems += error.problems
            continue
        if plan.name in (other.name for other in plans):
            problems.append(f"{where}[{at}].name: {plan.name!r} is the name of another tier; give each a `name` of its own")
        plans.append(plan)
    if problems:
        raise ConfigError(problems)
    return plans


def read_tier(given: object, where: str = "tier") -> TierPlan:
    """A plan for one tier; see `read_tiers`.

    Raises:
        ConfigError: naming every setting that is wrong.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise ConfigError(f"{where}: has no type; give one of: {', '.join(type_names())}")
    settings = dict(given)
    type_name = settings.pop("type")
    problems: list[str] = []
    common = read_fields({name: settings.pop(name, None) for name in ("name", "namespace")}, COMMON, problems, f"{where}.")
    kind = TYPES.get(type_name)
    make: Callable[..., Tier]
    if kind is not None:
        make, values = kind.make, read_fields(settings, kind.fields, problems, f"{where}.")
    else:
        make, values = _foreign(type_name, settings, where, problems), settings
    if problems:
        raise ConfigError(problems)
    takes_arena = kind is not None and kind.takes_arena
    name, label = common.get("name", type_name), common.get("namespace", "")
    return TierPlan(name, label, type_name, values, make, takes_arena)


def type_names() -> list[str]:
    """Types of tiers that settings can name: kvloft's, then those of installed plug-ins."""
    return [*TYPES, *(name for name in plugin_names(TIERS) if name not in TYPES)]


def _foreign(type_name: str, settings: dict[str, Any], where: str, problems: list[str]) -> Callable[..., Tier]:
    module_path = settings.pop("module_path", None)
    try:
        found = _load_foreign(type_name, module_path)
    except ConfigError as error:
        problems += [f"{where}.{problem}" for problem in error.problems]
        return Tier
    problems += [f"{where}.{problem}" for problem in _argument_problems(found, settings)]
    return found


def _argument_problems(found: type[Tier], settings: Mapping[str, Any]) -> list[str]:
    """Settings that a class does not take, and those that it needs and were not given."""
    parameters = dict(inspect.signature(found).parameters)
    for ours in ("block_bytes", "namespace"):
        parameters.pop(ours, None)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return []
    problems = []
    for name in settings:
        if name not in parameters:
            meant = nearest(name, parameters)
            hint = f"did you mean {meant}?" if meant else f"known are: {', '.join(parameters) or 'none'}"
            problems.append(f"{name}: unknown setting; {hint}")
    return problems + [
        f"{name}: missing; {found.__name__} needs it"
        for name, one in parameters.items()
        if one.default is one.empty and name not in settings
    ]


def _load_foreign(type_name: str, module_path: str | None) -> type[Tier]:
    if module_path is None:
        try:
            plugin = load_plugin(TIERS, type_name)
        except ConfigError as error:
            raise ConfigError(f"type: {error}") from error
        if plugin is None:
            meant = nearest(type_name, type_names())
            hint = f"did you mean {meant!r}?" if meant else f"choose one of: {', '.join(type_names())}"
            raise ConfigError(f"type: {type_name!r} is unknown; {hint}" + ("" if meant else ", or name its `module_path`"))
        found, source = plugin
    else:
        try:
            found, source = getattr(import_module(module_path), type_name, None), repr(module_path)
        except ImportError as error:
            raise ConfigError(f"module_path: {module_path!r} cannot be imported: {error}") from error
    if not isinstance(found, type) or not issubclass(found, Tier):
        raise ConfigError(f"type: {source} has no kvloft Tier class {type_name!r}")
    return found


def tiers_schema() -> dict[str, Any]:
    """JSON Schema of a list of tiers."""
    ours = [
        object_schema(
            [Field("type", constant(name), kind.meaning, required=True), *COMMON, *kind.fields],
            title=name,
        )
        for name, kind in TYPES.items()
    ]
    foreign = {
        "type": "object",
        "title": "a tier of your own",
        "properties": {
            "type": {"not": {"enum": type_names()}, "type": "string", "description": "The class's name."},
            "module_path": {"type": "string", "description": "Where to import it from."},
        },
        "required": ["type", "module_path"],
    }
    offered = [name for name in type_names() if name not in TYPES]
    plugins = {
        "type": "object",
        "title": "a tier of a plug-in",
        "properties": {"type": {"enum": offered, "description": "The name that the plug-in offers."}},
        "required": ["type"],
    }
    return {"type": "array", "items": {"oneOf": [*ours, *([plugins] if offered else []), foreign]}}


# What the settings may be.


def _read_policy(value: object) -> str:
    if is_policy(value):
        return str(value)
    meant = nearest(value, policy_names()) if isinstance(value, str) else None
    hint = f"did you mean {meant!r}? Choose" if meant else "choose"
    raise ValueError(f"{shown(value)} is unknown; {hint} one of: {', '.join(policy_names())}")


POLICY = Kind(_read_policy, {"type": "string"}, "a policy's name")
"""A policy that `make_policy` knows."""


def volume_bytes(path: str | PathLike[str]) -> int:
    """Size of the file system that holds this folder, or will once it is made."""
    absolute = Path(path).absolute()
    volume = os.statvfs(next(folder for folder in (absolute, *absolute.parents) if folder.exists()))
    return volume.f_blocks * volume.f_frsize


def _make_disk(
    block_bytes: int, namespace: Namespace, path: str, capacity: int | Share, min_free: int | Share = 0, **rest: Any
) -> Tier:
    from kvloft.tiers.disk import DiskTier

    size, spare = (part.of(volume_bytes(path)) if isinstance(part, Share) else part for part in (capacity, min_free))
    return DiskTier(path, size, block_bytes, namespace, min_free_bytes=spare, **rest)


_LABEL = Kind(lambda value: "" if value == "" else TEXT.read(value), {"type": "string"}, "text")
COMMON = (
    Field("name", TEXT, "What metrics and per-request filters call the tier; by default its type."),
    Field("namespace", _LABEL, "A label for its blocks: those with another label are never served."),
)
"""What every tier may be told."""
TYPES: dict[str, TierType] = {
    "disk": TierType(
        "A folder on a local disk: bounded, checksummed, found again after a restart.",
        (
            Field("path", TEXT, "The folder; made if it is not there.", required=True),
            Field(
                "capacity",
                SIZE_OR_SHARE,
                'Bound of everything in the folder, such as "200GiB"; "80%" is a share of its file system.',
                required=True,
            ),
            Field("min_free", SIZE_OR_SHARE, "Free space that the file system must keep; below it, blocks leave.", 0),
            Field("policy", POLICY, "Which block leaves when the tier is full.", "lru"),
            Field("ttl", SECONDS, "Seconds after which a stored block is a miss. By default none is."),
            Field("threads", COUNT, "Threads that read and write.", 8),
            Field("queue_blocks", COUNT, "Blocks that may wait to be written; what is offered beyond is dropped.", 4096),
            Field("direct", FLAG, "Bypass the page cache (O_DIRECT). By default where the file system takes it."),
            Field("sync", FLAG, "Have the medium keep a block before it counts as stored (fdatasync).", False),
        ),
        _make_disk,
    ),
    "redis": TierType("Redis or Valkey, shared by many engines.", stores.REDIS, stores.make_redis),
    "objects": TierType(
        "An object store (S3, Google Cloud Storage, Azure) or a shared folder.", stores.OBJECTS, stores.make_objects
    ),
    "mooncake": TierType("Mooncake Store, by RDMA or TCP.", stores.MOONCAKE, stores.make_mooncake, takes_arena=True),
}
"""The types of tiers that settings can name."""
