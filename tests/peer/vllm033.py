"""vLLM 0.33 for the peer tests: run as a script, it fetches what they need.

There is no CPU build of 0.33, but the Python files of its source distribution import beside 0.32's dependencies, which is
enough for tests at the level of managers and policies. They are kept in the virtual environment, about 50 MB.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.33.0"
FOLDER = Path(sys.prefix) / "share" / "kvloft" / f"vllm-{VERSION}"

# pip reads the metadata of a source distribution by running its set-up, which needs these, and torch.
BUILD = ("setuptools_rust", "setuptools_scm", "setuptools<81", "wheel")


def fetch() -> Path:
    """Folder to put on PYTHONPATH; downloads about 47 MB if it is not there yet.

    Raises:
        RuntimeError: it cannot be had; says why in one line.
    """
    if FOLDER.is_dir():
        return FOLDER
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "install", "--target", str(scratch / "build"), *BUILD])
        # The path must be absolute: the set-up runs in a folder of its own.
        env = {"PYTHONPATH": str(scratch / "build"), "VLLM_VERSION_OVERRIDE": VERSION, "VLLM_TARGET_DEVICE": "empty"}
        options = ["--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--dest", name]
        _run([*pip, "download", *options, f"vllm=={VERSION}"], env)
        _unpack(scratch / f"vllm-{VERSION}.tar.gz", scratch / "unpacked")
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(scratch / "unpacked" / f"vllm-{VERSION}", FOLDER)
    return FOLDER


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "rror" in line] or ["no output"]
        raise RuntimeError(f"pip could not fetch vLLM {VERSION}: {errors[-1].strip()}")


def _unpack(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        package = [
            member for member in tar if member.name.startswith(f"vllm-{VERSION}/vllm/") and member.name.endswith(".py")
        ]
        tar.extractall(into, package, filter="data")


if __name__ == "__main__":
    try:
        print(fetch())
    except RuntimeError as error:
        sys.exit(str(error))
