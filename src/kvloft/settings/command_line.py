"""The configuration that a command line of vLLM's gives, be it written down or that of a running process."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kvloft.errors import ConfigError

_OPTION = re.compile(r"--kv[-_]transfer[-_]config(?P<inside>\.[\w.-]+)?(?P<equals>=)?(?P<value>.*)", re.S)
_SHORT = re.compile(r"-?-kv[-_]offloading[-_](size|backend)(=.*)?")


def find_config(words: Sequence[str]) -> tuple[object, list[str]]:
    """The configuration in a command line, and what is wrong with how it is given.

    Args:
        words: the command line, such as `["vllm", "serve", "model", "--kv-transfer-config", "{...}"]`.

    Raises:
        ConfigError: there is none, or it is no JSON.
    """
    problems: list[str] = []
    found: object = None
    inside: dict[str, Any] = {}
    for at, word in enumerate(words):
        if _SHORT.fullmatch(word):
            problems.append(
                f"{word.partition('=')[0]}: overrules kv_connector and cpu_bytes_to_use of --kv-transfer-config; take it out"
            )
        match = _OPTION.fullmatch(word)
        if match is None:
            continue
        value = match["value"] if match["equals"] else next(iter(words[at + 1 :]), "")
        if match["inside"]:
            _put(inside, match["inside"][1:].split("."), value)
            continue
        if found is not None:
            problems.append("--kv-transfer-config: is given twice; vLLM takes the last one, so take the others out")
        found = read_json(value, "--kv-transfer-config")
    if found is None and not inside:
        from_file = _from_file(words)
        if from_file is not None:
            return from_file, problems
        if problems:
            raise ConfigError(
                "no --kv-transfer-config in this command line, so vLLM uses its own offloading; print one with "
                "`kvloft config --host SIZE`"
            )
        raise ConfigError(
            "no --kv-transfer-config in this command line; vLLM runs without offloading. Print one with "
            "`kvloft config --host SIZE`"
        )
    if inside:
        found = _merge(found if isinstance(found, Mapping) else {}, inside)
    return found, problems


def read_json(text: str, where: str) -> object:
    """JSON, decoded.

    Raises:
        ConfigError: it is none; says where it stops being so.
    """
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        quotes = "; in a shell, put all of it in single quotes" if "{" in text[:2] else ""
        raise ConfigError(f"{where}: is not JSON: {error}{quotes}") from None
    return found


def read_config(given: str) -> object:
    """What people give where a configuration is asked for: JSON itself, a file of it, or "-" for standard input.

    Raises:
        ConfigError: it cannot be read, or is no JSON.
    """
    if given == "-":
        return read_json(sys.stdin.read(), "standard input")
    if given.lstrip().startswith(("{", "[", '"')):
        return read_json(given, "the configuration")
    try:
        return read_json(Path(given).read_text(), given)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{given}: cannot be read: {reason}; give JSON or a file") from None


def command_of(pid: int, root: Path = Path("/")) -> list[str]:
    """The command line of a running process, or of the nearest of its ancestors that has a configuration: an engine's own
    process shows none.

    Args:
        pid: the process.
        root: where /proc is; another folder only for tests.

    Raises:
        ConfigError: there is no such process, or its command line cannot be read.
    """
    first: list[str] | None = None
    at = pid
    while at > 1:
        try:
            words = (root / f"proc/{at}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            status = (root / f"proc/{at}/status").read_text()
        except OSError as error:
            if first is not None:
                break
            raise ConfigError(f"--pid: {pid}: {error.strerror}; list engines with: pgrep -af vllm") from None
        first = first or words
        if any(_OPTION.fullmatch(word) for word in words):
            return words
        parent = re.search(r"^PPid:\s*(\d+)", status, re.M)
        at = int(parent[1]) if parent else 0
    return first or []


def _from_file(words: Sequence[str]) -> object:
    """From the file of options that `--config` names."""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option != "--config":
            continue
        path = Path(value if equals else next(iter(words[at + 1 :]), ""))
        try:
            yaml = import_module("yaml")
        except ImportError:
            raise ConfigError(f"--config: {path} cannot be read without PyYAML: pip install pyyaml") from None
        try:
            options = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"--config: {path} cannot be read: {error}") from None
        if isinstance(options, Mapping):
            found = options.get("kv-transfer-config", options.get("kv_transfer_config"))
            return read_json(found, f"{path}: kv-transfer-config") if isinstance(found, str) else found
    return None


def _put(into: dict[str, Any], path: Sequence[str], text: str) -> None:
    *parents, name = path
    for parent in parents:
        into = into.setdefault(parent, {})
    try:
        into[name] = json.loads(text)
    except (ValueError, RecursionError):
        into[name] = text


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for name, value in other.items():
        known = merged.get(name)
        merged[name] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
