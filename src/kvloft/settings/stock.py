"""Settings of vLLM's own specs, `CPUOffloadingSpec` and `TieringOffloadingSpec`, with kvloft's policies and disk in them.

vLLM takes sizes of theirs as numbers only, and says little of what is wrong; this says it before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvloft.config import nearest, parse_share_or_size, shown
from kvloft.errors import ConfigError
from kvloft.fields import FLAG, MAPPING, NUMBER, TEXT, Field, Kind, choice, constant, object_schema, read_fields
from kvloft.policies import BUILTIN, is_policy, policy_names
from kvloft.settings.spec import HOST, OF_VLLM, OURS, POLICY, THRESHOLD, TRACKER, block_problems
from kvloft.tiers.settings import TYPES, TierPlan, read_tier

_THEIR_POLICIES = ("lru", "arc")
"""Names that vLLM's registry knows first, whatever the module path says."""
_THEIR_TIERS = ("example", "fs", "p2p", "obj", "kvcr")


def _read_bytes(value: object) -> int:
    try:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
            return int(value)
        size = parse_share_or_size(value)
    except ValueError:
        size = None
    fix = f"write {size}" if isinstance(size, int) else "give a number of bytes"
    raise ValueError(f"{shown(value)} is not what vLLM's own spec reads; {fix}, without a unit or quotes")


def class_name(policy: str) -> str:
    """What to call a kvloft policy in vLLM's own specs, whose names shadow some of ours."""
    return BUILTIN[policy].__name__ if policy in BUILTIN else policy


def _policy_problems(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the policy that settings of a stock spec name."""
    name, module = given.get(POLICY.name), given.get("cache_policy_module_path")
    if module is None:
        if name is None or name in _THEIR_POLICIES:
            return []
        if isinstance(name, str) and _known(name):
            return [f'cache_policy_module_path: missing; {name!r} is a policy of kvloft\'s, so give "{OURS}"']
        return [
            f"{POLICY.name}: {shown(name)} is unknown to vLLM; "
            f'with cache_policy_module_path "{OURS}" choose one of: {_names()}'
        ]
    if module != OURS:
        return []
    if name is None or name in _THEIR_POLICIES:
        found = class_name(name or "lru")
        return [
            f"{POLICY.name}: {shown(name or 'lru')} is vLLM's own policy, module path or not; write \"{found}\" for kvloft's"
        ]
    if not isinstance(name, str) or not _known(name.partition("?record=")[0]):
        meant = nearest(name, _names().split(", ")) if isinstance(name, str) else None
        hint = f"did you mean {meant!r}? Choose" if meant else "choose"
        return [f"{POLICY.name}: {shown(name)} is unknown; {hint} one of: {_names()}"]
    return []


def _known(name: str) -> bool:
    return is_policy(name) or name in (policy.__name__ for policy in BUILTIN.values())


def _names() -> str:
    return ", ".join(dict.fromkeys(class_name(name) for name in policy_names()))


# A disk of kvloft's below vLLM's tiering.


class StockDisk(NamedTuple):
    """Settings of `kvloft.vllm.DiskTier`, read."""

    plan: TierPlan
    keep_after_reset: bool
    locality: str | None


_AROUND = (
    Field(
        "after_reset",
        choice("forget", "keep"),
        "What becomes of the blocks when vLLM resets its caches; keep only if weights are never changed in place.",
        "forget",
    ),
    Field("locality", choice("LOCAL", "REMOTE"), "What requests may ask for this tier by. By default either."),
)
_FROM_VLLM = (
    Field("type", constant("DiskTier"), "kvloft's disk tier.", required=True),
    Field("module_path", constant(OURS), "Where vLLM finds it.", required=True),
    Field("backpressure", MAPPING, "vLLM's own; see its documentation."),
)
DISK = (*_FROM_VLLM, *TYPES["disk"].fields, *_AROUND)
"""All that may be said of one."""


def read_stock_disk(given: Mapping[str, Any], where: str) -> StockDisk:
    """What was said of one; what vLLM reads itself may be among it, or not.

    Args:
        given: settings.
        where: what stands before names in problems.

    Raises:
        ConfigError: naming every setting that is wrong.
    """
    own, theirs = ([field.name for field in fields] for fields in (_AROUND, _FROM_VLLM))
    problems: list[str] = []
    around = read_fields({name: given[name] for name in own if name in given}, _AROUND, problems, f"{where}.")
    plan = None
    rest = {name: value for name, value in given.items() if name not in (*own, *theirs)}
    try:
        plan = read_tier({"type": "disk", **rest}, where)
    except ConfigError as error:
        problems += error.problems
    if problems or plan is None:
        raise ConfigError(problems)
    return StockDisk(plan, around.get("after_reset") == "keep", around.get("locality"))


def _read_secondary_tiers(value: object) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} is not a list of tiers")
    problems: list[str] = []
    for at, tier in enumerate(value):
        where = f"secondary_tiers[{at}]"
        if not isinstance(tier, Mapping) or not isinstance(tier.get("type"), str):
            problems.append(f'{where}: has no type; for kvloft\'s disk give "DiskTier" and module_path "{OURS}"')
        elif tier["type"] == "DiskTier" and tier.get("module_path", OURS) == OURS:
            problems += _disk_problems(tier, where)
        elif tier["type"] not in _THEIR_TIERS and tier.get("module_path") in (None, OURS):
            known = ("DiskTier", *_THEIR_TIERS)
            meant = nearest(tier["type"], known)
            hint = f"did you mean {meant}?" if meant else f"known are: {', '.join(known)}"
            problems.append(f"{where}.type: {tier['type']!r} is unknown; {hint}")
    if problems:
        raise ConfigError(problems)
    return value


def _disk_problems(tier: Mapping[str, Any], where: str) -> list[str]:
    problems = [] if "module_path" in tier else [f'{where}.module_path: missing; give "{OURS}"']
    try:
        read_stock_disk(tier, where)
    except ConfigError as error:
        problems += error.problems
    return problems


# The specs.


_BYTES = Kind(_read_bytes, {"type": "integer", "minimum": 1}, "number of bytes")
_COMMON = (
    Field(HOST.name, _BYTES, "Host memory to use, for all ranks together, in bytes.", required=True),
    replace(POLICY, default="lru"),
    Field("cache_policy_module_path", TEXT, f'Where to import the policy from: "{OURS}" for kvloft\'s.'),
    *OF_VLLM,
    Field("canonical_layout", FLAG, "Keep blocks in a layout that does not depend on how the model is spread.", False),
)
CPU = (
    Field("spec_name", constant("CPUOffloadingSpec"), "vLLM's own host memory, the default."),
    *_COMMON,
    THRESHOLD,
    TRACKER,
)
"""What `CPUOffloadingSpec` reads."""
TIERING = (
    Field("spec_name", constant("TieringOffloadingSpec"), "vLLM's own host memory with tiers below.", required=True),
    *_COMMON,
    Field(
        "secondary_tiers",
        Kind(
            _read_secondary_tiers,
            {"type": "array", "items": {"anyOf": [object_schema(DISK), {"type": "object", "required": ["type"]}]}},
            "list of tiers",
        ),
        "Tiers below host memory.",
        (),
    ),
    Field("backpressure", MAPPING, "vLLM's own, for all its tiers."),
    Field("tier_poll_interval_s", NUMBER, "vLLM 0.33: seconds between two looks at tiers that work between steps.", 0.001),
)
"""What `TieringOffloadingSpec` reads."""


def read_stock(given: Mapping[str, Any], fields: Sequence[Field], problems: list[str]) -> dict[str, Any]:
    """Settings of a stock spec, read; every fault found is added to `problems`."""
    refused = (THRESHOLD.name, TRACKER.name) if fields is TIERING else ()
    problems += [f"{name}: is not possible with TieringOffloadingSpec; take it out" for name in refused if given.get(name)]
    values = read_fields({name: value for name, value in given.items() if name not in refused}, fields, problems)
    problems += [*_policy_problems(given), *block_problems(given)]
    return values
