"""Trace files: plain, .gz or .zst, read as a stream; written whole or not at all."""

import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from kvloft.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class TraceFile:
    """Reads the lines of a file, decompressed if its first bytes say that it is gzip or zstd, whatever its name.

    Raises:
        TraceError: the file cannot be opened, or its compressed data are damaged or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._raw = path.open("rb")
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        self.size = os.fstat(self._raw.fileno()).st_size
        """Bytes on disk, compressed if it is."""

    @property
    def position(self) -> int:
        """Bytes read from disk so far: progress towards `size`."""
        return self._raw.tell()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers, from 1, and lines; blank ones are left out."""
        try:
            with self._stream() as stream:
                for number, line in enumerate(stream, 1):
                    if not line.isspace():
                        yield number, line
        except (EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise TraceError(
                f"{self.path}: the compressed data are damaged or cut short ({error}); fetch it again"
            ) from error

    def read(self) -> bytes:
        """All of it."""
        return b"".join(line for _, line in self.lines())

    def _stream(self) -> BinaryIO:
        magic = self._raw.read(4)
        self._raw.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            return cast(BinaryIO, gzip.GzipFile(fileobj=self._raw))
        if magic == _ZSTD_MAGIC:
            frames = zstandard.ZstdDecompressor().stream_reader(self._raw, read_across_frames=True, closefd=True)
            return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, frames), 1 << 20))
        return self._raw


@contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place at `path` when the block ends, and leaves nothing behind if it fails.

    Names ending in .gz or .zst are compressed.

    Raises:
        TraceError: the folder cannot be written to.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from error
    draft = Path(name)
    try:
        with open(handle, "wb") as raw, compressed(raw, path.name) as stream:
            yield stream
        draft.replace(path)
    except BaseException:
        draft.unlink()
        raise


@contextmanager
def compressed(raw: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """`raw`, compressed as the ending of `name` says; closing ends the compressed data, not `raw`."""
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as stream:
            yield cast(BinaryIO, stream)
    elif name.endswith(".zst"):
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as frames:
            yield cast(BinaryIO, frames)
    else:
        yield raw
