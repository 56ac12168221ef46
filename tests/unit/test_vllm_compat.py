"""Which vLLM we run with, and what we say to others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvloft
from kvloft.errors import MissingExtra, UnsupportedVersion

pytest.importorskip("vllm", reason="vLLM is not installed")

from kvloft.vllm.versions import SUPPORTED, parse_release


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.32.0", (0, 32)), ("0.33.0", (0, 33)), ("0.33.1.dev4+g12ab", (0, 33)), ("v0.32.2+cpu", (0, 32)), ("0.33", (0, 33))],
)
def test_supported_versions(version, release):
    assert parse_release(version) == release in SUPPORTED


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0", "0.320.0", "dev", "", "0.3", "3.0.32"])
def test_other_versions_are_told_the_range(version):
    with pytest.raises(UnsupportedVersion, match=r"supports vLLM 0\.32 and 0\.33.*pip install 'vllm>=0\.32,<0\.34'"):
        parse_release(version)


def test_only_one_module_asks_which_version_it_is():
    folder = Path(kvloft.__file__).parent / "vllm"
    asking = {path.name for path in folder.glob("*.py") if re.search(r"RELEASE\s*(?:[<>=!]=?|in)\s", path.read_text())}
    assert asking == {"compat.py"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_unsupported_engine_is_refused_at_import():
    done = run(
        "import sys, types; fake = types.ModuleType('vllm'); fake.__version__ = '0.40.1'; sys.modules['vllm'] = fake\n"
        "import kvloft.vllm\n"
        "try: kvloft.vllm.KvloftManager\n"
        "except kvloft.errors.UnsupportedVersion as error: print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "vLLM 0.40.1 is installed" in done.stdout


def test_without_the_engine_the_extra_is_named():
    assert issubclass(MissingExtra, ImportError)
    done = run(
        "import sys; sys.modules['vllm'] = None\n"
        "import kvloft.vllm\n"
        "try: kvloft.vllm.ARC\n"
        "except kvloft.errors.MissingExtra as error: print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'kvloft[vllm]'" in done.stdout


def test_importing_the_package_imports_no_engine():
    done = run("import sys, kvloft.vllm; sys.exit(any(name in sys.modules for name in ('vllm', 'torch')))")
    assert done.returncode == 0
