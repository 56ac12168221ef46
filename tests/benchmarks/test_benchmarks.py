"""Each benchmark runs in short form with nothing to be given: `make bench` does so with all of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))
NARROWER = {
    "scheduler": "--policies lru --sizes 64 --states full --requests 5 --parts costs",
    "stores": "--only sealing",
}
"""What makes the slow ones quick; every one takes `--short`."""
NEEDS_VLLM = {"engine", "scheduler"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_runs_in_short_form(name: str, tmp_path: Path) -> None:
    if name in NEEDS_VLLM:
        pytest.importorskip("vllm")
    command = [sys.executable, str(ROOT / f"benchmarks/{name}.py"), "--short", *NARROWER.get(name, "").split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\d", ended.stdout)
    assert not list(tmp_path.iterdir())
