"""The manager-level peer tests and those of the spec again, with vLLM 0.33."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import vllm033

HERE = Path(__file__).parent


def test_manager_level_tests_pass_with_vllm_0_33():
    if "KVLOFT_PEER" in os.environ:
        pytest.skip("this is the run with vLLM 0.33")
    try:
        folder = vllm033.fetch()
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    spec = HERE.parent / "unit/test_vllm_spec.py"
    tests = [*sorted(HERE.glob("test_manager*.py")), *sorted(HERE.glob("test_stock*.py")), spec]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"KVLOFT_PEER": vllm033.VERSION, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, tests)]
    done = subprocess.run(command, env=env, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
