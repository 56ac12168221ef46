"""A trace on disk, and what is bad about one."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest
from kvloft.traces.files import TraceFile


class Trace(ABC):
    """Requests in the order in which they came. Every iteration reads the files again, as a stream.

    Traces can be pickled, so that other processes can read them too.
    """

    block_tokens = 0
    """Tokens a block."""
    size = 0
    """Bytes that an iteration reads from disk."""
    position = 0
    """Bytes that the latest iteration has read so far."""
    skipped = 0
    """Bad lines, or files, that the latest iteration left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.assumptions: list[str] = []
        """What the reader had to choose because the data do not say it, in words."""

    @property
    def name(self) -> str:
        return self.path.name

    @abstractmethod
    def __iter__(self) -> Iterator[TraceRequest]: ...


class LineReader(Protocol):
    """Makes requests of lines; None for lines that are none.

    Raises:
        msgspec.DecodeError, ValueError: a bad line. The text may end in " - at `$.field`".
    """

    field: str
    """Where the keys of a request stand in a line."""

    def remarks(self) -> list[str]:
        """What one should know of the lines so far, in words: what is not there, and what they tell of the future."""

    def __call__(self, line: bytes) -> TraceRequest | None: ...


class LineTrace(Trace):
    """A file, or several that follow each other, of one JSON object a line.

    Args:
        paths: the files; the last of them gives the trace its name.
        reader: makes the reader of one iteration.
        block_tokens: tokens a block.
        skip_bad: leave bad lines out, and count them.
    """

    def __init__(
        self, paths: list[Path], reader: Callable[[], LineReader], block_tokens: int, skip_bad: bool = False
    ) -> None:
        super().__init__(paths[-1])
        self.block_tokens = block_tokens
        self.size = sum(path.stat().st_size for path in paths)
        self._paths = paths
        self._reader = reader
        self._skip_bad = skip_bad

    def __iter__(self) -> Iterator[TraceRequest]:
        self.skipped = self.position = 0
        read = self._reader()
        before = 0
        for path in self._paths:
            file = TraceFile(path)
            lines = file.lines()
            while True:
                try:
                    number, line = next(lines)
                except StopIteration:
                    break
                except TraceError:
                    if not self._skip_bad:
                        raise
                    self.skipped += 1
                    break
                self.position = before + file.position
                try:
                    request = read(line)
                    if request and len({*request.keys}) != len(request.keys):
                        raise ValueError(f"a block appears twice, but each stands for all before it{_FIELD}{read.field}`")
                except (msgspec.DecodeError, RecursionError, ValueError) as error:
                    if not self._skip_bad:
                        raise bad_data(f"{path}, line {number}", error, "lines") from error
                    self.skipped += 1
                    continue
                if request:
                    yield request
            before += path.stat().st_size
        self.position = self.size
        self.assumptions = read.remarks()


_FIELD = " - at `$."


def bad_data(where: str, error: Exception, what: str) -> TraceError:
    """An error that names place, field and reason, and the way around it."""
    reason, _, field = str(error).partition(_FIELD)
    if not field and (missing := re.search(r"required field `(\w+)`", reason)):
        field = missing[1]
    place = f"{where}, field {field.rstrip('`')}" if field else where
    return TraceError(f"{place}: {reason}; correct it, or leave bad {what} out with --skip-bad")
