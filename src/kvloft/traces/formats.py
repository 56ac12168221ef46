"""Opening a trace: by the name of its format, or by what it looks like."""

import re
from pathlib import Path

import msgspec

from kvloft.errors import TraceError
from kvloft.traces import mooncake, qwen
from kvloft.traces.files import TraceFile
from kvloft.traces.native import NativeReader
from kvloft.traces.reblock import Reblocked
from kvloft.traces.sessions import SessionsTrace
from kvloft.traces.trace import LineTrace, Trace

FORMATS = {
    "kvloft": "kvloft's own JSON lines",
    "mooncake": "Mooncake JSON lines, 512 tokens a block",
    "qwen": "Qwen-Bailian JSON lines, 16 tokens a block",
    "sessions": "kv-cache-tester session JSON: a file or a folder of them",
}


def open_trace(
    path: Path,
    form: str | None = None,
    *,
    skip_bad: bool = False,
    block_tokens: int | None = None,
    seed: int = 0,
    spread: float = 4 * 3600.0,
    shared_prefix: bool = False,
) -> Trace:
    """A trace, plain, gzip or zstd.

    Args:
        path: a file, or a folder of sessions.
        form: one of `FORMATS`; detected if None.
        skip_bad: leave out bad lines (or session files), and count them.
        block_tokens: join blocks to this size; a multiple of the trace's own.
        seed: of the start times of sessions, where the data have none.
        spread: seconds over which those start times are drawn.
        shared_prefix: model what sessions have in common, see `SessionsTrace`.

    Raises:
        TraceError: no such file, an unknown format, or nothing that looks like a known one.
    """
    if not path.exists():
        raise TraceError(f"{path}: there is no such file or folder")
    form = form or _detect(path)
    if form == "sessions":
        trace: Trace = SessionsTrace(path, skip_bad, seed, spread, shared_prefix)
    elif path.is_dir():
        raise TraceError(f"{path}: is a folder; the format {form!r} is read from a file")
    elif form == "mooncake":
        trace = LineTrace([path], mooncake.MooncakeReader, mooncake.BLOCK_TOKENS, skip_bad)
    elif form == "qwen":
        trace = LineTrace([path], qwen.QwenReader, qwen.BLOCK_TOKENS, skip_bad)
    elif form == "kvloft":
        trace = _open_native(path, skip_bad)
    else:
        raise TraceError(f"format {form!r} is unknown; choose one of: {', '.join(FORMATS)}")
    return trace if block_tokens in (None, trace.block_tokens) else Reblocked(trace, block_tokens or 0)


def parts(path: Path) -> list[Path]:
    """The earlier parts of a recording that has been rotated (name.0001.jsonl before name.jsonl), and the file itself."""
    stem, dot, endings = path.name.partition(".")
    pattern = re.compile(re.escape(stem) + r"\.\d+" + re.escape(dot + endings))
    earlier = (file for file in path.parent.iterdir() if pattern.fullmatch(file.name))
    return [*sorted(earlier, key=lambda file: int(file.name.split(".")[1])), path]


def _open_native(path: Path, skip_bad: bool) -> LineTrace:
    reader = NativeReader()
    for number, line in TraceFile(path).lines():
        try:
            reader(line)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        break
    return LineTrace(parts(path), NativeReader, reader.block_tokens, skip_bad)


def _detect(path: Path) -> str:
    if path.is_dir():
        return "sessions"
    first = next((line for _, line in TraceFile(path).lines()), None)
    if first is None:
        raise TraceError(f"{path}: is empty")
    try:
        fields = msgspec.json.decode(first)
    except (msgspec.DecodeError, RecursionError):
        fields = None
    if fields is None and first.lstrip().startswith(b"{") and b'"hash_id_scope"' in TraceFile(path).read():
        return "sessions"
    if isinstance(fields, dict):
        if "format" in fields:
            return "kvloft"
        if "requests" in fields:
            return "sessions"
        if "hash_ids" in fields:
            return "qwen" if "chat_id" in fields else "mooncake"
    raise TraceError(f"{path}, line 1: looks like no known format; name one of {', '.join(FORMATS)} with --format")
