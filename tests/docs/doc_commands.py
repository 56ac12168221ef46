"""What stands in for programs that a page names and a test cannot run, and checks of what they were told."""

import json
import re
import stat
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import doc_configs
import pytest
import yaml
from doc_blocks import ROOT

from kvloft.cli import main

_RECORD = 'printf "%s\\0" $# {name} "$@" >> "$COMMANDS"\n'
_KVLOFT = """#!/bin/sh
case "$1 $2" in
    "demo "* | "top "* | "bench store") {record} ;;
    *) {python} -m kvloft "$@" || [ $? -eq 1 ] ;;
esac
"""
"""Engines, stores and terminals are not there; all else runs. Exit code 1 is an answer, not an error."""
_ANSWERS = {"curl": "echo vllm:kvloft_hits_total 1\n"}


def write_programs(folder: Path) -> None:
    """Programs for the front of PATH: kvloft itself, and for each of `CHECKS` one that writes down how it was called."""
    folder.mkdir()
    programs = {name: "#!/bin/sh\n" + _RECORD.format(name=name) + _ANSWERS.get(name, "") for name in CHECKS}
    programs["kvloft"] = _KVLOFT.format(record=_RECORD.format(name="kvloft").strip(), python=sys.executable)
    for name, text in programs.items():
        program = folder / name
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


def read_calls(record: Path) -> list[tuple[str, list[str]]]:
    """What was called, with which arguments."""
    words = record.read_text().split("\0")[:-1] if record.exists() else []
    calls = []
    while words:
        count, name = int(words[0]), words[1]
        calls.append((name, words[2 : 2 + count]))
        words = words[2 + count :]
    return calls


def check_call(name: str, arguments: list[str], place: Path) -> None:
    """Hold one call against the program's own options, as far as they are to be had here."""
    CHECKS[name](arguments, place)


def _kvloft(arguments: list[str], place: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--help"])
    assert not end.value.code, arguments


def _vllm(arguments: list[str], place: Path) -> None:
    assert arguments[0] == "serve"
    doc_configs.check_serve(arguments[1:])


def _pip(arguments: list[str], place: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert arguments[0] == "install"
    for wanted in [word for word in arguments[1:] if not word.startswith("--")]:
        found = re.fullmatch(r"(?:\.|kvloft|dist/kvloft-\*\.whl)(?:\[([a-z0-9,]+)\])?", wanted)
        assert found, f"pip install {wanted}"
        assert {*(found[1] or "").split(",")} - {""} <= extras.keys(), wanted


def _make(arguments: list[str], place: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {word for word in arguments if "=" not in word} <= {*targets}, arguments


def _python(arguments: list[str], place: Path) -> None:
    if arguments[:2] == ["-m", "pytest"]:
        assert all((ROOT / file).is_file() for file in arguments[2:]), arguments
        return
    script = (ROOT / arguments[0]).read_text()
    for option in arguments[1:]:
        assert not option.startswith("--") or f'"{option}"' in script, f"{arguments[0]} {option}"


def _cluster(arguments: list[str], place: Path) -> None:
    """Files that are named are there, and are YAML or JSON."""
    for option, given in zip(arguments, [*arguments[1:], ""], strict=True):
        if option in ("--values", "--filename", "--from-file", "--file", "--patch-file"):
            file = place / given
            assert file.is_file(), given
            if file.suffix in (".yaml", ".yml", ".json"):
                assert [*yaml.safe_load_all(file.read_text())]


def _curl(arguments: list[str], place: Path) -> None:
    [url] = [word for word in arguments if word.startswith("http")]
    assert url.startswith("http://localhost:8000/")
    if "-d" in arguments:
        doc_configs.check_request(json.loads(arguments[arguments.index("-d") + 1]), url)


def _mooncake(program: str) -> Callable[[list[str], Path], None]:
    def check(arguments: list[str], place: Path) -> None:
        options = doc_configs.options_of(program)
        assert {word.partition("=")[0].lstrip("-") for word in arguments} <= options, arguments

    return check


CHECKS: dict[str, Callable[[list[str], Path], None]] = {
    "kvloft": _kvloft,
    "vllm": _vllm,
    "pip": _pip,
    "make": _make,
    "python": _python,
    "curl": _curl,
    "docker": _cluster,
    "helm": _cluster,
    "kubectl": _cluster,
    "mooncake_master": _mooncake("mooncake_master"),
    "mooncake_client": _mooncake("mooncake_client"),
}
"""By program, what can be said of a call without running it."""
