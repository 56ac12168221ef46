"""The whole of `--kv-transfer-config`: three ways to have kvloft in it, checked before an engine is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvloft.config import nearest, shown
from kvloft.fields import COUNT, FLAG, MAPPING, TEXT, Field, choice, constant, object_schema, read_fields
from kvloft.settings.spec import OURS, SPEC, read_spec
from kvloft.settings.stock import CPU, TIERING, read_stock

EXTRA = "kv_connector_extra_config"


class Way(StrEnum):
    """How kvloft is in vLLM."""

    KVLOFT = "kvloft"
    """Manager, policies and tiers are kvloft's: `KvloftSpec`."""
    POLICY = "policy"
    """vLLM's own `CPUOffloadingSpec`, which asks kvloft what to evict."""
    TIERING = "tiering"
    """vLLM's own `TieringOffloadingSpec`, with kvloft's disk below and its policy above."""


SPECS = {
    Way.KVLOFT: ("KvloftSpec", SPEC),
    Way.POLICY: ("CPUOffloadingSpec", CPU),
    Way.TIERING: ("TieringOffloadingSpec", TIERING),
}
"""The spec of each way by its name, and what may be said to it."""
CONNECTOR = (
    Field("kv_connector", constant("OffloadingConnector"), "What vLLM hands KV blocks to.", required=True),
    Field("kv_role", choice("kv_both", "kv_producer", "kv_consumer"), "Store and load, or only one.", required=True),
    Field(EXTRA, MAPPING, "Settings of kvloft, and of vLLM's own offloading.", required=True),
    Field("kv_load_failure_policy", choice("fail", "recompute"), "What becomes of a request whose load failed.", "fail"),
    Field("engine_id", TEXT, "Tells this engine from others; made up if not given."),
    Field("kv_connector_module_path", TEXT, "Where to import a connector from; not needed here."),
    Field("kv_buffer_device", TEXT, "Not used by offloading."),
    Field("kv_port", COUNT, "Not used by offloading.", 14579),
    Field("enable_permute_local_kv", FLAG, "Not used by offloading.", False),
)
"""What vLLM 0.32 and 0.33 take beside each other in `--kv-transfer-config`."""


@dataclass(slots=True)
class Checked:
    """What a configuration says.

    Args:
        way: how kvloft is in it; None if it is not, or that cannot be told.
        settings: those of the spec, read.
        problems: every fault, each naming the setting and the fix.
    """

    way: Way | None
    settings: dict[str, Any]
    problems: list[str]


def check(config: object) -> Checked:
    """Look at a configuration as `--kv-transfer-config` takes it. It needs no engine, no GPU and none of what it names.

    Args:
        config: the JSON, decoded.
    """
    if not isinstance(config, Mapping):
        return Checked(None, {}, [f"a {type(config).__name__} is no configuration; give a JSON object"])
    if config.get("kv_connector") == "MultiConnector":
        return _check_several(config)
    problems: list[str] = []
    connector = config.get("kv_connector")
    if connector is not None and connector != "OffloadingConnector":
        meant = nearest(connector, ["OffloadingConnector"]) if isinstance(connector, str) else None
        hint = f"did you mean {meant!r}?" if meant else 'kvloft needs "OffloadingConnector"'
        problems.append(f"kv_connector: {shown(connector)} is not for offloading; {hint}")
    read_fields(config, CONNECTOR, problems)
    extra = config.get(EXTRA)
    if extra is None:
        return Checked(None, {}, problems)
    if not isinstance(extra, Mapping):
        return Checked(None, {}, [*problems, f"{EXTRA}: a {type(extra).__name__} is no mapping; give settings by name"])
    way, found = _way(extra)
    settings: dict[str, Any] = {}
    if way is Way.KVLOFT:
        settings = read_spec(extra, found, strict=True)
    elif way is not None:
        settings = read_stock(extra, SPECS[way][1], found)
        if not found and not _ours_in(extra):
            found.append(
                f'eviction_policy: nothing of kvloft\'s is in this; give one with cache_policy_module_path "{OURS}", '
                'or spec_name "KvloftSpec"'
            )
    return Checked(way, settings, problems + [f"{EXTRA}: {problem}" for problem in found])


def _check_several(config: Mapping[str, Any]) -> Checked:
    extra = config.get(EXTRA)
    children = extra.get("connectors") if isinstance(extra, Mapping) else None
    if not isinstance(children, Sequence) or isinstance(children, str):
        return Checked(None, {}, [f"{EXTRA}.connectors: missing; give the list of connectors that MultiConnector joins"])
    named = [
        (at, child)
        for at, child in enumerate(children)
        if isinstance(child, Mapping) and child.get("kv_connector") == "OffloadingConnector"
    ]
    if not named:
        return Checked(None, {}, [f'{EXTRA}.connectors: none is an "OffloadingConnector", which kvloft needs'])
    results = [(at, check(child)) for at, child in named]
    problems = [f"connectors[{at}].{problem}" for at, result in results for problem in result.problems]
    return Checked(results[0][1].way, results[0][1].settings, problems)


def _way(extra: Mapping[str, Any]) -> tuple[Way | None, list[str]]:
    name, module = extra.get("spec_name", "CPUOffloadingSpec"), extra.get("spec_module_path")
    ways = {spec: way for way, (spec, _) in SPECS.items()}
    if not isinstance(name, str) or name not in ways:
        if module is not None and module != OURS:
            return None, [f"spec_name: {shown(name)} of {shown(module)} is not kvloft's; nothing of it is known here"]
        meant = nearest(name, ways) if isinstance(name, str) else None
        hint = f"did you mean {meant}?" if meant else f"choose one of: {', '.join(ways)}"
        return None, [f"spec_name: {shown(name)} is unknown; {hint}"]
    way = ways[name]
    if way is Way.KVLOFT and module != OURS:
        given = "missing" if module is None else f"{shown(module)} is not where KvloftSpec is"
        return way, [f'spec_module_path: {given}; give "{OURS}"']
    return way, []


def _ours_in(extra: Mapping[str, Any]) -> bool:
    tiers = extra.get("secondary_tiers") or ()
    return extra.get("cache_policy_module_path") is not None or any(tier.get("module_path") == OURS for tier in tiers)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `--kv-transfer-config` with kvloft in it, in any of the three ways. Where names depend on
    what is installed (policies, tiers of one's own), it takes any text; `check` looks closer."""
    spec = object_schema(SPEC, title="KvloftSpec")
    spec["required"] = [*spec["required"], "spec_name", "spec_module_path"]
    stock = [object_schema(fields, title=name) for name, fields in (SPECS[Way.POLICY], SPECS[Way.TIERING])]
    whole = object_schema(CONNECTOR, title="--kv-transfer-config of vLLM, with kvloft")
    whole["properties"][EXTRA] = {"description": "Settings of kvloft, and of vLLM's own.", "anyOf": [spec, *stock]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}
