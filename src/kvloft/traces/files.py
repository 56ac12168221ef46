"""Trace files: plain, .gz or .zst, read as a stream."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from kvloft.errors import TraceError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class TraceFile:
    """Reads the lines of a file, decompressed if its first bytes say that it is gzip or zstd, whatever its name.

    Raises:
        TraceError: the file cannot be read, or its compressed data are damaged or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw: BinaryIO | None = None

    @property
    def position(self) -> int:
        """Bytes read from disk so far, compressed if the file is."""
        return self._raw.tell() if self._raw and not self._raw.closed else 0

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers, from 1, and lines; blank ones are left out."""
        try:
            with self.path.open("rb") as raw, _decompressed(raw) as stream:
                self._raw = raw
                for number, line in enumerate(stream, 1):
                    if not line.isspace():
                        yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            reason = f"the compressed data are damaged or cut short ({error})"
            raise TraceError(f"{self.path}: {reason}; fetch it again, or use what is there with --skip-bad") from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def read(self) -> bytes:
        """All of it."""
        return b"".join(line for _, line in self.lines())


def _decompressed(raw: BinaryIO) -> BinaryIO:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if magic == _ZSTD_MAGIC:
        return cast(BinaryIO, io.BufferedReader(_ZstdFrames(raw), 1 << 20))
    return raw


class _ZstdFrames(io.RawIOBase):
    """Reads zstd frames, one after another. Unlike zstandard's own reader it tells a frame cut short from its end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        while not self._data:
            chunk = self._frame.unused_data if self._frame.eof else b""
            chunk = chunk or self._raw.read(1 << 17)
            if not chunk:
                if not self._frame.eof:
                    raise EOFError("the last frame has no end")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._data = memoryview(self._frame.decompress(chunk))
        target = memoryview(buffer).cast("B")
        n = min(len(target), len(self._data))
        target[:n] = self._data[:n]
        self._data = self._data[n:]
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()
