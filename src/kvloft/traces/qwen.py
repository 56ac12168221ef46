"""Qwen-Bailian JSONL: one request a line, as in Alibaba's `qwen-bailian-usagetraces-anon`.

`timestamp` in s, `chat_id` of the request and `parent_chat_id` of the turn before it (-1: none), `turn`, `type`,
`input_length` and `output_length` in tokens, `hash_ids`: prefix-chained ids of 16-token blocks.
"""

from typing import Annotated

import msgspec

from kvloft.traces.event import TraceRequest
from kvloft.traces.mooncake import Count, Seconds

BLOCK_TOKENS = 16


class QwenLine(msgspec.Struct, gc=False):
    """A line as it stands in the file."""

    chat_id: int
    timestamp: Seconds
    input_length: Count
    hash_ids: list[Count]
    output_length: Count = 0
    parent_chat_id: Annotated[int, msgspec.Meta(ge=-1)] = -1


class QwenReader:
    """Lines to requests. The session of a request is the `chat_id` of its conversation's first turn."""

    field = "hash_ids"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(QwenLine).decode
        self._roots: dict[int, int] = {}
        """The first turn of every later turn's conversation."""

    def __call__(self, line: bytes) -> TraceRequest:
        asked = self._decode(line)
        root = asked.chat_id
        if asked.parent_chat_id >= 0:
            root = self._roots.get(asked.parent_chat_id, asked.parent_chat_id)
            self._roots[asked.chat_id] = root
        return TraceRequest(asked.hash_ids, asked.timestamp, asked.input_length, asked.output_length, str(root))

    def remarks(self) -> list[str]:
        return []
