"""The same requests in larger blocks."""

from collections.abc import Iterator

import msgspec

from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace


class Reblocked(Trace):
    """A trace whose blocks are joined, several to one.

    A joined block is named by the last of its parts, which stands for all before it. What is left at the end of a request is
    a partial block, as it is in the trace itself. Hits that were recorded are of the old blocks and are left out.

    Args:
        trace: the trace as it is.
        block_tokens: tokens a joined block.

    Raises:
        TraceError: that is no multiple of the trace's own tokens a block; ids tell nothing of smaller blocks.
    """

    def __init__(self, trace: Trace, block_tokens: int) -> None:
        if block_tokens < 1 or block_tokens % trace.block_tokens:
            raise TraceError(
                f"{trace.path}: blocks of {trace.block_tokens} tokens cannot be made blocks of {block_tokens}; "
                f"give a multiple of {trace.block_tokens}"
            )
        super().__init__(trace.path)
        self._trace = trace
        self._parts = block_tokens // trace.block_tokens
        self.block_tokens = block_tokens
        self.size = trace.size
        self.assumptions = [*trace.assumptions, f"blocks of {trace.block_tokens} tokens are joined to {block_tokens}"]

    def __iter__(self) -> Iterator[TraceRequest]:
        parts = self._parts
        for request in self._trace:
            self.position, self.skipped = self._trace.position, self._trace.skipped
            keys = request.keys
            joined = [keys[min(at + parts, len(keys)) - 1] for at in range(0, len(keys), parts)]
            yield msgspec.structs.replace(request, keys=joined, hits=None)
        self.position, self.skipped = self._trace.position, self._trace.skipped
