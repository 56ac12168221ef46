"""Mooncake JSONL: one request a line, as in Qin et al., "Mooncake", FAST 2025, `FAST25-release/traces`.

`timestamp` in ms, `input_length` and `output_length` in tokens, `hash_ids`: prefix-chained ids of 512-token blocks, global.
"""

from typing import Annotated

import msgspec

from kvloft.traces.event import TraceRequest

_Count = Annotated[int, msgspec.Meta(ge=0)]


class MooncakeLine(msgspec.Struct, gc=False):
    """A line as it stands in the file."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    hash_ids: list[_Count]
    output_length: _Count = 0

    def request(self) -> TraceRequest:
        return TraceRequest(self.hash_ids, self.timestamp / 1000, self.input_length, self.output_length)
