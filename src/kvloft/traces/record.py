"""Recording a trace while serving, without making the one who serves wait."""

import base64
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from kvloft.errors import ConfigError
from kvloft.request import Key
from kvloft.traces.native import DIGEST_BYTES, Header

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0


class Asked(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request to be recorded, at its end.

    Args:
        keys: its blocks in prefix order. They must not be changed afterwards.
        time: when it arrived, on the recorder's clock.
        input_tokens: length of the prompt.
        output_tokens: length of the answer.
        session: the conversation it belongs to, if known; recorded as a salted digest.
        tenant: whose it is; recorded as a salted digest.
        last: the caller said that the conversation is over.
        hits: blocks that the cache served.
        ttl: the caller said that the blocks are of no use so many seconds after the end.
        priority: what the caller said they are worth.
    """

    keys: Sequence[Key]
    time: float
    input_tokens: int = 0
    output_tokens: int = 0
    session: str | None = None
    tenant: str = ""
    last: bool = False
    hits: int = 0
    ttl: float | None = None
    priority: int = 0


class _Line(msgspec.Struct, omit_defaults=True):
    keys: str
    time: float
    hits: int | None
    input: int = 0
    output: int = 0
    session: str | None = None
    tenant: str = ""
    last: bool = False
    ttl: float | None = None
    priority: int = 0


class Recorder:
    """Writes requests to a file in kvloft's own format, in a thread of its own.

    `record` never blocks: what does not fit into the buffer is dropped, counted, and marked in the file. Keys, sessions
    and tenants are written as digests with a random salt that is kept in memory only: nobody can find out from the file
    which prompts were asked, not even by trying. A file that has grown to `part_bytes` is renamed (name.0001.jsonl.zst) and
    a new one begun; all but the newest `parts` of those are deleted. What has been written is readable after a crash but for
    the last second.

    Args:
        path: the file; compressed with zstd if it ends in .zst. It must not exist yet.
        block_tokens: tokens a block.
        facts: about the run, for the header, such as policy and capacity.
        buffer_blocks: blocks of requests that may wait to be written.
        part_bytes: size at which a file is ended, as written.
        parts: ended files to keep.
        clock: seconds; times in the file count from the recorder's start.
        salt: for tests and for joining recordings of several processes; random if None.

    Raises:
        ConfigError: the path has another ending, exists, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        block_tokens: int,
        facts: Mapping[str, str | int | float | bool | None] | None = None,
        *,
        buffer_blocks: int = 1 << 20,
        part_bytes: int = 256 << 20,
        parts: int = 8,
        clock: Callable[[], float] = time.monotonic,
        salt: bytes | None = None,
    ) -> None:
        if not path.name.endswith((".jsonl", ".jsonl.zst")):
            raise ConfigError(f"record: {str(path)!r} must end in .jsonl or .jsonl.zst")
        self.path = path
        self.written = 0
        """Requests written."""
        self.dropped = 0
        """Requests that found no room in the buffer, or came after an error."""
        self.error: OSError | None = None
        """What ended the recording early, such as a full disk."""
        self._salt = salt or os.urandom(16)
        name = blake2b(b"name", key=self._salt, digest_size=8).hexdigest()
        self._header = Header(block_tokens=block_tokens, source="record", salt=name, facts=dict(facts or {}))
        self._buffer_blocks = buffer_blocks
        self._part_bytes = part_bytes
        self._parts = parts
        self._clock = clock
        self._start = clock()
        self._queue: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._put = 0
        """Blocks handed in by `record`; only its thread writes it."""
        self._taken = 0
        """Blocks taken out by the writer; only it writes it. What waits is the difference, never underestimated."""
        self._marked = 0
        """Dropped requests that the file says are missing."""
        self._part = 0
        self._closed = False
        try:
            self._file = _Output(path)
        except OSError as error:
            raise ConfigError(f"record: {str(path)!r} cannot be begun: {error.strerror}") from error
        self._write_line(self._header)
        self._thread = threading.Thread(target=self._run, name="kvloft-record", daemon=True)
        self._thread.start()

    def record(self, asked: Asked) -> bool:
        """Take a request, to be written soon; False if it was dropped. Never blocks, never raises. One thread at a time."""
        size = len(asked.keys) + 1
        if self._closed or self.error or self._put + size - self._taken > self._buffer_blocks:
            self.dropped += 1
            return False
        self._put += size
        self._queue.put(asked)
        return True

    def close(self, timeout: float = 10.0) -> bool:
        """Write what waits and end the file. Blocks up to `timeout` seconds; whether that sufficed."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # The writer's thread.

    def _run(self) -> None:
        try:
            self._write_all()
            self._file.close()
        except OSError as error:
            self.error = error
            _log.error("recording to %s has ended: %s", self.path, error)

    def _write_all(self) -> None:
        flushed = time.monotonic()
        while True:
            try:
                asked = self._queue.get(timeout=_FLUSH_SECONDS)
                self._taken += len(asked.keys) + 1 if asked else 0
            except queue.Empty:
                self._file.flush()
                flushed = time.monotonic()
                continue
            self._mark_gap()
            if asked is None:
                return
            self._write_line(self._line(asked))
            self.written += 1
            if self._file.nbytes >= self._part_bytes:
                self._rotate()
            if time.monotonic() - flushed >= _FLUSH_SECONDS:
                self._file.flush()
                flushed = time.monotonic()

    def _mark_gap(self) -> None:
        dropped = self.dropped
        if dropped > self._marked:
            self._write_line({"dropped": dropped - self._marked})
            self._marked = dropped

    def _line(self, asked: Asked) -> _Line:
        digests = b"".join(self._digest(key if isinstance(key, bytes) else repr(key).encode()) for key in asked.keys)
        return _Line(
            keys=base64.b64encode(digests).decode(),
            time=round(max(0.0, asked.time - self._start), 6),
            hits=asked.hits,
            input=asked.input_tokens,
            output=asked.output_tokens,
            session=None if asked.session is None else self._digest(asked.session.encode()).hex(),
            tenant=self._digest(asked.tenant.encode()).hex() if asked.tenant else "",
            last=asked.last,
            ttl=asked.ttl,
            priority=asked.priority,
        )

    def _digest(self, value: bytes) -> bytes:
        return blake2b(value, key=self._salt, digest_size=DIGEST_BYTES).digest()

    def _write_line(self, line: object) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def _rotate(self) -> None:
        self._file.close()
        self._part += 1
        self.path.rename(self._part_path(self._part))
        if self._part > self._parts:
            self._part_path(self._part - self._parts).unlink(missing_ok=True)
        self._file = _Output(self.path)
        self._write_line(self._header)

    def _part_path(self, number: int) -> Path:
        stem, dot, endings = self.path.name.partition(".")
        return self.path.with_name(f"{stem}.{number:04}{dot}{endings}")


class _Output:
    """A new file, of mode 0600, zstd if its name says so. `nbytes` counts what has reached it."""

    def __init__(self, path: Path) -> None:
        self._raw: BinaryIO = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._zstd = zstandard.ZstdCompressor(level=3).compressobj() if path.name.endswith(".zst") else None
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        self._put(self._zstd.compress(data) if self._zstd else data)

    def flush(self) -> None:
        """Make all that was written readable by others."""
        if self._zstd:
            self._put(self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        self._raw.flush()

    def close(self) -> None:
        if self._zstd:
            self._put(self._zstd.flush())
        self._raw.close()

    def _put(self, data: bytes) -> None:
        self._raw.write(data)
        self.nbytes += len(data)
