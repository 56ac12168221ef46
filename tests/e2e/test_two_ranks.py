"""Tensor parallelism over two processes, with the scheduler in a third: the ranks share one arena."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.mark.xdist_group("engine")  # ranks wait for each other in tight loops: not beside another engine
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="vLLM binds each rank to a core of its own")
def test_two_ranks_load_what_they_stored(models: Mapping[str, Path]) -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, here / "two_ranks.py", models["llama"]],
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    # The reason stands in some process's traceback, anywhere in it: show all of it if the test fails.
    sys.stderr.write(done.stderr)
    assert done.returncode == 0
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["cached"] == [0] * 4 + [192] * 5
    assert said["loaded"] == 5 * 3
    for request in range(4, 9):
        assert said["tokens"][request] == said["tokens"][request % 4], "computed the first time, loaded the second"
    assert len({tuple(tokens) for tokens in said["tokens"]}) == 4
