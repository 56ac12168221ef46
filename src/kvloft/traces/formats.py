"""Opening a trace by name or by what its first line looks like."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest
from kvloft.traces.files import TraceFile
from kvloft.traces.mooncake import MooncakeLine


class Trace(ABC):
    """Requests in the order in which they came. Every iteration reads the files again, as a stream. Traces can be
    pickled, so that other processes can read them too."""

    def __init__(self, path: Path, block_tokens: int) -> None:
        self.path = path
        self.block_tokens = block_tokens
        """Tokens a block."""
        self.skipped = 0
        """Bad lines passed over by the latest iteration."""
        self.assumptions: list[str] = []
        """What the reader had to choose because the data do not say it, in words."""
        self.size = 0
        """Bytes that an iteration reads from disk."""
        self.position = 0
        """Bytes that the current iteration has read so far."""

    @property
    def name(self) -> str:
        return self.path.name

    @abstractmethod
    def __iter__(self) -> Iterator[TraceRequest]: ...


class _Line(Protocol):
    def request(self) -> TraceRequest: ...


@dataclass(frozen=True)
class LineFormat:
    """A format of one JSON object a line.

    Args:
        name: how it is called on the command line.
        line: the type of a line; its fields say what a good line is.
        block_tokens: tokens a block.
        mark: a field that no other format has; what the format is detected by.
    """

    name: str
    line: type[_Line]
    block_tokens: int
    mark: str


class LineTrace(Trace):
    """A file of one request a line."""

    def __init__(self, path: Path, form: LineFormat, skip_bad: bool = False) -> None:
        super().__init__(path, form.block_tokens)
        self._form = form
        self._skip_bad = skip_bad
        self.size = TraceFile(path).size

    def __iter__(self) -> Iterator[TraceRequest]:
        file = TraceFile(self.path)
        self.skipped = self.position = 0
        decode = msgspec.json.Decoder(self._form.line).decode
        for number, line in file.lines():
            try:
                request = decode(line).request()
                if len({*request.keys}) != len(request.keys):
                    raise ValueError("a block appears twice, but each stands for all blocks before it - at `$.hash_ids`")
            except (msgspec.DecodeError, ValueError) as error:
                if not self._skip_bad:
                    raise TraceError(f"{self.path}, line {number}: {error}; leave such lines out with --skip-bad") from error
                self.skipped += 1
                continue
            self.position = file.position
            yield request


FORMATS = {form.name: form for form in (LineFormat("mooncake", MooncakeLine, 512, "hash_ids"),)}


def open_trace(path: Path, form: str | None = None, skip_bad: bool = False) -> Trace:
    """A trace, in the format named or detected.

    Raises:
        TraceError: no such file, an unknown format, or nothing that looks like a known one.
    """
    if form is None:
        form = _detect(path)
    elif form not in FORMATS:
        raise TraceError(f"format {form!r} is unknown; choose one of: {', '.join(FORMATS)}")
    return LineTrace(path, FORMATS[form], skip_bad)


def _detect(path: Path) -> str:
    for _, line in TraceFile(path).lines():
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError:
            fields = None
        for form in FORMATS.values():
            if isinstance(fields, dict) and form.mark in fields:
                return form.name
        raise TraceError(f"{path}, line 1: looks like no known format; name one of {', '.join(FORMATS)} with --format")
    raise TraceError(f"{path}: is empty")
