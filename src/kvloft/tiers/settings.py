"""Tiers from settings: `{"type": "disk", "path": ..., "capacity": "200GiB"}` as people write them in JSON or TOML."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from kvloft.config import nearest, parse_size, shown
from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.policies import is_policy, policy_names
from kvloft.tiers import stores
from kvloft.tiers.base import Buffer, Tier
from kvloft.tiers.values import read_count, read_flag, read_seconds, read_text

Reader: TypeAlias = Callable[[object], Any]
"""A setting's value from what was written; `ValueError` says what would be right."""
_EXAMPLE = '[{"type": "disk", "path": "/var/cache/kvloft", "capacity": "200GiB"}]'


class TierPlan(NamedTuple):
    """A tier that has been described rightly and can be opened.

    Args:
        name: what metrics and per-request filters call it.
        label: text from the settings that tells its blocks from those of other models; see `Namespace`.
        make: makes the tier, but for its name.
        takes_arena: whether it can be told in what memory all blocks will lie.
    """

    name: str
    label: str
    make: Callable[..., Tier]
    takes_arena: bool = False

    def open(self, block_bytes: int, namespace: Namespace, arena: Buffer | None = None) -> Tier:
        """Make the tier.

        Args:
            block_bytes: of each block.
            namespace: of the blocks.
            arena: memory in which the buffers of all jobs will lie, if that is known.
        """
        memory = {"arena": arena} if self.takes_arena else {}
        tier = self.make(block_bytes=block_bytes, namespace=namespace, **memory)
        tier.name = self.name
        return tier


class _Kind(NamedTuple):
    """What a type of tier may be told, what it must be told, and how it is made."""

    readers: Mapping[str, Reader]
    required: Sequence[str]
    make: Callable[..., Tier]
    takes_arena: bool = False


def read_tiers(given: object, where: str = "tiers") -> list[TierPlan]:
    """Plans for the tiers of a list of settings.

    Each has a `type`, and may have a `name` (by default its type) and a `namespace` (a label for its blocks). A type that
    is none of kvloft's names a `Tier` class in `module_path`, called as `Class(block_bytes=..., namespace=..., **settings)`.

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
        raise ConfigError(f"{where}: has no type; give one of: {', '.join(_KINDS)}")
    settings = dict(given)
    kind_name = settings.pop("type")
    problems = [
        f"{where}.{name}: is not text; give it in quotes"
        for name in ("name", "namespace")
        if not isinstance(settings.get(name, ""), str)
    ]
    name, label = settings.pop("name", kind_name), settings.pop("namespace", "")
    if kind_name in _KINDS:
        kind = _KINDS[kind_name]
        values = _read(settings, kind, where, problems)
        make: Callable[..., Tier] = kind.make
    else:
        make, values = _foreign(kind_name, settings, where, problems), settings
    if problems:
        raise ConfigError(problems)
    return TierPlan(name, label, partial(make, **values), kind_name in _KINDS and _KINDS[kind_name].takes_arena)


def _read(given: Mapping[str, Any], kind: _Kind, where: str, problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in kind.readers:
            meant = nearest(name, kind.readers)
            hint = f"did you mean {meant}?" if meant else f"known are: {', '.join(kind.readers)}"
            problems.append(f"{where}.{name}: unknown setting; {hint}")
            continue
        try:
            values[name] = kind.readers[name](value)
        except ValueError as error:
            problems.append(f"{where}.{name}: {error}")
    problems += [f"{where}.{name}: missing; say what it is" for name in kind.required if name not in given]
    return values


def _foreign(kind_name: str, settings: dict[str, Any], where: str, problems: list[str]) -> Callable[..., Tier]:
    module_path = settings.pop("module_path", None)
    if module_path is None:
        meant = nearest(kind_name, _KINDS)
        hint = f"did you mean {meant!r}?" if meant else f"choose one of: {', '.join(_KINDS)}, or name its `module_path`"
        problems.append(f"{where}.type: {kind_name!r} is unknown; {hint}")
        return Tier
    try:
        found = getattr(import_module(module_path), kind_name, None)
    except ImportError as error:
        problems.append(f"{where}.module_path: {module_path!r} cannot be imported: {error}")
        return Tier
    if not isinstance(found, type) or not issubclass(found, Tier):
        problems.append(f"{where}.type: {module_path!r} has no kvloft Tier class {kind_name!r}")
        return Tier
    return found


def after_reset(value: object) -> str:
    """Whether tiers "forget" or "keep" what they hold when the engine resets its caches.

    Raises:
        ValueError: it is neither.
    """
    if value in ("forget", "keep"):
        return str(value)
    raise ValueError(f'{shown(value)} is neither "forget" nor "keep"')


# What the settings may be.


def _policy(value: object) -> str:
    if is_policy(value):
        return str(value)
    raise ValueError(f"{shown(value)} is unknown; choose one of: {', '.join(policy_names())}")


def _make_disk(block_bytes: int, namespace: Namespace, path: str, capacity: int, min_free: int = 0, **rest: Any) -> Tier:
    from kvloft.tiers.disk import DiskTier

    return DiskTier(path, capacity, block_bytes, namespace, min_free_bytes=min_free, **rest)


_KINDS: dict[str, _Kind] = {
    "disk": _Kind(
        readers={
            "path": read_text,
            "capacity": parse_size,
            "min_free": parse_size,
            "policy": _policy,
            "ttl": read_seconds,
            "threads": read_count,
            "queue_blocks": read_count,
            "direct": read_flag,
            "sync": read_flag,
        },
        required=("path", "capacity"),
        make=_make_disk,
    ),
    "redis": _Kind(stores.REDIS, ("url",), stores.make_redis),
    "objects": _Kind(stores.OBJECTS, ("url",), stores.make_objects),
    "mooncake": _Kind(stores.MOONCAKE, ("url",), stores.make_mooncake, takes_arena=True),
}
"""The types of tiers that settings can name."""
