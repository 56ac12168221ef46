"""kvloft's own trace format: JSON lines, what `kvloft.traces.record` and `kvloft synth` write.

The first line is a `Header`. Every other line is a request:

    {"time": 1.25, "keys": [0, 1, 2], "input": 48, "output": 20, "session": "7", "tenant": "a", "last": true, "hits": 2}

and may have the hints `ttl`, `priority` and `pin_until`; times are in seconds since the trace began.
`keys` are either numbers or, as recorded, one base64 string of 8 bytes a block (little endian): salted digests, from which
neither tokens nor the engine's own hashes can be had. All fields but `keys` may be missing. Further headers may follow, so
that files with the same salt can be joined by `cat`. A line {"dropped": n} says that n requests are missing there.
"""

from typing import Annotated

import msgspec
import numpy as np

from kvloft.traces.event import TraceRequest
from kvloft.traces.mooncake import Count, Seconds

FORMAT = "kvloft-trace"
VERSION = 1
MADE = "synth"
"""The source of a trace that was generated."""
DIGEST_BYTES = 8
_POSITIVE = np.uint64((1 << 63) - 1)


class Header(msgspec.Struct, kw_only=True, frozen=True):
    """What holds for all requests behind it.

    Args:
        format: "kvloft-trace".
        version: 1.
        block_tokens: tokens a block.
        source: who wrote it: "record" or "synth".
        salt: names the salt of the digests, without giving it away; equal ids mean that keys can be compared.
        facts: about the recorded run or the generator, such as policy, capacity and seed.
    """

    format: str = FORMAT
    version: int = VERSION
    block_tokens: Annotated[int, msgspec.Meta(ge=1)]
    source: str = ""
    salt: str = ""
    facts: dict[str, str | int | float | bool | None] = {}


class NativeLine(msgspec.Struct, gc=False, omit_defaults=True):
    """Any line but a header."""

    keys: list[Count] | bytes = []
    time: Seconds | None = None
    input: Count = 0
    output: Count = 0
    session: str | None = None
    tenant: str = ""
    last: bool = False
    hits: Count | None = None
    ttl: Seconds | None = None
    priority: int = 0
    pin_until: Seconds | None = None
    dropped: Count = 0
    format: str | None = None


class NativeReader:
    """Lines to requests; None for a header and for a gap, which `dropped` counts."""

    field = "keys"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(NativeLine).decode
        self._header = msgspec.json.Decoder(Header).decode
        self._salt: str | None = None
        self.block_tokens = 0
        self.dropped = self.last = 0
        self._made = False

    def __call__(self, line: bytes) -> TraceRequest | None:
        said = self._decode(line)
        if said.format is not None:
            self._begin(self._header(line))
            return None
        if not self.block_tokens:
            raise ValueError(f'the first line must be a header, such as {{"format": "{FORMAT}", "version": 1, ...}}')
        if said.dropped:
            self.dropped += said.dropped
            return None
        self.last += said.last
        keys = said.keys
        if isinstance(keys, bytes):
            if len(keys) % DIGEST_BYTES:
                raise ValueError(f"{len(keys)} bytes are no whole number of digests of {DIGEST_BYTES} - at `$.keys`")
            keys = (np.frombuffer(keys, "<u8") & _POSITIVE).tolist()
        return TraceRequest(
            keys,
            said.time,
            said.input,
            said.output,
            said.session,
            said.tenant,
            said.last,
            said.hits,
            said.ttl,
            said.priority,
            said.pin_until,
        )

    def remarks(self) -> list[str]:
        remarks = []
        if self.dropped:
            remarks.append(f"{self.dropped:,} requests were not recorded, for lack of room in its buffer")
        if self._made and self.last:
            remarks.append("conversations tell when they end, as generated ones do")
        return remarks

    def _begin(self, header: Header) -> None:
        if header.format != FORMAT:
            raise ValueError(f"the format is {header.format!r}, not {FORMAT!r} - at `$.format`")
        if header.version != VERSION:
            raise ValueError(f"version {header.version} is unknown; this kvloft reads {VERSION} - at `$.version`")
        if self.block_tokens not in (0, header.block_tokens):
            raise ValueError(f"{header.block_tokens} tokens a block, but {self.block_tokens} before - at `$.block_tokens`")
        if self._salt not in (None, header.salt):
            raise ValueError("another salt than before, so keys cannot be compared - at `$.salt`")
        self.block_tokens, self._salt, self._made = header.block_tokens, header.salt, header.source == MADE


def native_line(request: TraceRequest) -> bytes:
    """A request as a line, with its keys as numbers."""
    line = NativeLine(
        list(request.keys),
        request.time,
        request.input_tokens,
        request.output_tokens,
        request.session,
        request.tenant,
        request.last,
        request.hits,
        request.ttl,
        request.priority,
        request.pin_until,
    )
    return msgspec.json.encode(line) + b"\n"
