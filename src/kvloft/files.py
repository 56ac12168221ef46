"""Files that are written whole or not at all."""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from kvloft.errors import KvloftError, OutputError


def check_outputs(*paths: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Make sure that files can be written, before the work whose results go there. None is no file.

    Args:
        paths: where results go.
        inputs: files that the work reads, and that must not be written over.

    Raises:
        OutputError: some cannot; names all of them.
    """
    given = [path for path in paths if path is not None]
    obstacles = [obstacle for path in given if (obstacle := _obstacle(path))]
    for at, path in enumerate(given):
        if any(_same(path, source) for source in inputs):
            obstacles.append(f"{path}: is what is read here; give another name for what is written")
        elif any(_same(path, other) for other in given[:at]):
            obstacles.append(f"{path}: is given twice; give each result a file of its own")
    if obstacles:
        raise OutputError("\n".join(obstacles))


@contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place at `path` when the block ends, and leaves nothing behind if it fails.

    Names ending in .gz or .zst are compressed.

    Raises:
        OutputError: it cannot be written.
    """
    check_outputs(path)
    draft = _draft(path)
    try:
        with draft.open("wb") as raw, _compressed(raw, path.name) as stream:
            yield stream
        draft.replace(path)
    except KvloftError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _same(one: Path, other: Path) -> bool:
    there = os.path.exists(one) and os.path.exists(other)
    return one.absolute() == other.absolute() or (there and one.samefile(other))


def _obstacle(path: Path) -> str | None:
    if os.path.isdir(path):
        return f"{path}: is a folder; give the name of a file in it"
    draft = _draft(path)
    try:
        draft.touch()
        draft.unlink()
    except OSError as error:
        return f"{path}: cannot be written: {error.strerror or error}; give a file in a folder that you may write to"
    return None


@contextmanager
def _compressed(raw: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """`raw`, compressed as the ending of `name` says; closing ends the compressed data, not `raw`."""
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as stream:
            yield cast(BinaryIO, stream)
    elif name.endswith(".zst"):
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as frames:
            yield cast(BinaryIO, frames)
    else:
        yield raw
