"""Builds the sdist, and from it the wheel, into a folder (dist/ if none is named): the same commit gives the same bytes.

Same bytes, that is, with the same versions of requirements/dist.txt and, as the wheel has a compiled part, the same compiler
and Python. Times are SOURCE_DATE_EPOCH if that is set, else the commit's. What is built is the files that git tracks, as
they are in the work tree; nothing else that lies there gets in.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(into: Path) -> None:
    """Build both.

    Raises:
        subprocess.CalledProcessError: git or the build failed, and said why.
    """
    os.umask(0o022)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tree = _copy(scratch / "tree")
        sdist = _repack(_build(tree, "sdist", scratch / "sdist", epoch), scratch, epoch)
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch / "unpacked", filter="data")
        [source] = (scratch / "unpacked").iterdir()
        wheel = _build(source, "wheel", scratch / "wheel", epoch)
        into.mkdir(parents=True, exist_ok=True)
        for path in (sdist, wheel):
            print(shutil.copy(path, into / path.name))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def _copy(tree: Path) -> Path:
    for name in _git("ls-files", "-z").split("\0")[:-1]:
        source, copy = ROOT / name, tree / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    return tree


def _build(source: Path, kind: str, into: Path, epoch: int) -> Path:
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        # Neither debug information nor what asserts print may name the folder of the build.
        "CFLAGS": f"{os.environ.get('CFLAGS', '')} -g0 -ffile-prefix-map={source}=.",
    }
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(into), str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    [built] = into.iterdir()
    return built


def _repack(sdist: Path, scratch: Path, epoch: int) -> Path:
    """The same archive in a fixed order, of nobody, and of one time."""
    packed = scratch / sdist.name
    with (
        tarfile.open(sdist) as old,
        packed.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w") as new,
    ):
        for member in sorted((one for one in old if not one.isdir()), key=lambda one: one.name):
            clean = tarfile.TarInfo(member.name)
            clean.size, clean.mtime, clean.mode = member.size, epoch, 0o755 if member.mode & 0o100 else 0o644
            new.addfile(clean, old.extractfile(member))
    return packed


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
