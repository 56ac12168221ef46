"""From a few plain options to the configuration."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvloft.config import Share, nearest, parse_share_or_size
from kvloft.errors import ConfigError
from kvloft.policies import DEFAULT
from kvloft.settings.connector import EXTRA, SPECS, Way, check
from kvloft.settings.spec import OURS
from kvloft.settings.stock import class_name
from kvloft.tiers.stores import type_of
from kvloft.transfer.arena import total_memory


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be configured, in people's words.

    Args:
        host: size of host memory, such as "64GiB" or "80%".
        disks: "FOLDER:SIZE" each.
        stores: address of each shared store.
        policy: which block leaves host memory; None for the default.
        way: how kvloft is to be in vLLM.
        settings: "NAME=VALUE" each, for all else; NAME is `cascade.admission`, `disk.threads` (a tier by its name) and such,
            VALUE JSON or text.
    """

    host: str | None = None
    disks: Sequence[str] = ()
    stores: Sequence[str] = ()
    policy: str | None = None
    way: Way = Way.KVLOFT
    settings: Sequence[str] = ()


def parse_disk(text: str) -> tuple[str, str | None]:
    """Folder and size of "FOLDER:SIZE", or of "FOLDER" alone.

    Raises:
        ConfigError: there is no folder.
    """
    folder, colon, size = text.rpartition(":")
    if not (folder if colon else text):
        raise ConfigError(f'--disk: {text!r} names no folder; write "/var/cache/kvloft:{size or "2TiB"}"')
    return (folder, size or None) if colon else (text, None)


def build(wanted: Wanted) -> dict[str, Any]:
    """The configuration for `--kv-transfer-config`.

    Raises:
        ConfigError: naming every fault, by the option that it is of.
    """
    problems: list[str] = []
    extra: dict[str, Any] = {}
    stock = wanted.way is not Way.KVLOFT
    extra["spec_name"] = SPECS[wanted.way][0]
    if not stock:
        extra["spec_module_path"] = OURS
    if wanted.host is None:
        problems.append('--host: missing; say how much host memory to use for blocks, such as "64GiB" or "50%"')
    else:
        extra["cpu_bytes_to_use"] = _host(wanted.host, stock, problems)
    if stock:
        extra |= {"eviction_policy": class_name(wanted.policy or DEFAULT), "cache_policy_module_path": OURS}
    elif wanted.policy is not None:
        extra["eviction_policy"] = wanted.policy
    tiers = _tiers(wanted, problems)
    if tiers:
        extra["secondary_tiers" if stock else "tiers"] = tiers
    for setting in wanted.settings:
        _set(extra, tiers, setting, problems)
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", EXTRA: extra}
    problems += [problem.removeprefix(f"{EXTRA}: ") for problem in check(config).problems if not _told(problem, problems)]
    if problems:
        raise ConfigError(problems)
    return config


def _told(problem: str, problems: Sequence[str]) -> bool:
    return "cpu_bytes_to_use" in problem and any(known.startswith("--host") for known in problems)


def _host(text: str, stock: bool, problems: list[str]) -> str | int:
    try:
        size = parse_share_or_size(text)
    except ValueError as error:
        problems.append(f"--host: {error}")
        return text
    if stock:
        # vLLM's own specs read numbers only.
        return size.of(total_memory()) if isinstance(size, Share) else size
    return text


def _tiers(wanted: Wanted, problems: list[str]) -> list[dict[str, Any]]:
    tiers: list[dict[str, Any]] = []
    if wanted.disks and wanted.way is Way.POLICY:
        problems.append("--disk: vLLM's CPUOffloadingSpec has no tiers; give --way tiering, or --way kvloft")
    if wanted.stores and wanted.way is not Way.KVLOFT:
        problems.append("--store: only kvloft's own spec has shared stores; give --way kvloft")
    if problems and wanted.way is not Way.KVLOFT:
        return []
    stock = {"type": "DiskTier", "module_path": OURS}
    for disk in wanted.disks:
        try:
            folder, size = parse_disk(disk)
        except ConfigError as error:
            problems += error.problems
            continue
        if size is None:
            problems.append(
                f'--disk: {disk!r} has no size; write "{folder}:2TiB", or "{folder}:80%" for a share of the disk'
            )
        kind = {"type": "disk"} if wanted.way is Way.KVLOFT else stock
        tiers.append({**kind, "path": folder, "capacity": size or "1%"})
    tiers += [{"type": type_of(url), "url": url} for url in wanted.stores]
    if wanted.way is Way.KVLOFT:
        _name(tiers)
    return tiers


def _name(tiers: Sequence[dict[str, Any]]) -> None:
    """Give tiers of the same type names of their own."""
    for at, tier in enumerate(tiers):
        before = sum(other["type"] == tier["type"] for other in tiers[:at])
        if before:
            tier["name"] = f"{tier['type']}{before + 1}"


def _set(extra: dict[str, Any], tiers: Sequence[dict[str, Any]], setting: str, problems: list[str]) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path:
        problems.append(f"--set: {path!r} is not of the form NAME=VALUE, such as cascade.admission=second-use")
        return
    owner, dot, name = path.partition(".")
    place: dict[str, Any] = extra
    if dot:
        named = {tier.get("name", "disk" if tier["type"] == "DiskTier" else tier["type"]): tier for tier in tiers}
        if owner == "cascade":
            place = extra.setdefault("cascade", {})
        elif owner in named:
            place = named[owner]
        else:
            meant = nearest(owner, ["cascade", *named])
            hint = f"did you mean {meant}?" if meant else f"known are: {', '.join(['cascade', *named])}"
            problems.append(f"--set: {owner!r} is no tier here; {hint}")
            return
    place[name if dot else owner] = _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def explain(way: Way, types: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What each setting means: rows with `of`, `name`, `written`, `default`, `meaning`.

    Args:
        way: how kvloft is in vLLM.
        types: of tiers to tell of; all if there are none.
    """
    from kvloft.settings.connector import CONNECTOR
    from kvloft.settings.stock import DISK
    from kvloft.tiers.settings import COMMON, TYPES
    from kvloft.transfer.limits import cascade_fields

    sections: list[tuple[str, Sequence[Any]]] = [("--kv-transfer-config", CONNECTOR), (EXTRA, SPECS[way][1])]
    if way is Way.KVLOFT:
        sections += [(f"tiers: {name}", (*COMMON, *TYPES[name].fields)) for name in types or TYPES]
        sections.append(("cascade", cascade_fields()))
    elif way is Way.TIERING:
        sections.append(("secondary_tiers: DiskTier", DISK))
    return [
        {
            "of": title,
            "name": field.name,
            "written": field.kind.written,
            "default": _shown(field.default) if not field.required else None,
            "required": field.required,
            "meaning": field.meaning,
        }
        for title, fields in sections
        for field in fields
    ]


def _shown(default: object) -> str | int | float | bool | None:
    return default if isinstance(default, str | int | float | bool) else None
