"""Mooncake JSONL: one request a line, as in Qin et al., "Mooncake", FAST 2025, `FAST25-release/traces`.

`timestamp` in ms, `input_length` and `output_length` in tokens, `hash_ids`: prefix-chained ids of 512-token blocks, global;
the last block of a request may be partial.
"""

from typing import Annotated

import msgspec

from kvloft.traces.event import TraceRequest

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]

BLOCK_TOKENS = 512


class MooncakeLine(msgspec.Struct, gc=False):
    """A line as it stands in the file."""

    timestamp: Seconds
    input_length: Count
    hash_ids: list[Count]
    output_length: Count = 0


class MooncakeReader:
    """Lines to requests."""

    field = "hash_ids"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(MooncakeLine).decode

    def __call__(self, line: bytes) -> TraceRequest:
        asked = self._decode(line)
        return TraceRequest(asked.hash_ids, asked.timestamp / 1000, asked.input_length, asked.output_length)

    def remarks(self) -> list[str]:
        return []
