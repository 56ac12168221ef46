"""A trace without times, with times."""

from collections.abc import Iterator

import msgspec

from kvloft.traces.event import TraceRequest
from kvloft.traces.trace import Trace


class Spaced(Trace):
    """The same requests, at equal distances in time.

    Args:
        trace: as it is; times that it has are left out.
        rate: requests a second.
    """

    def __init__(self, trace: Trace, rate: float) -> None:
        super().__init__(trace.path)
        self.block_tokens, self.size = trace.block_tokens, trace.size
        self._trace, self._rate = trace, rate

    def __iter__(self) -> Iterator[TraceRequest]:
        for number, request in enumerate(self._trace):
            self.position = self._trace.position
            yield msgspec.structs.replace(request, time=number / self._rate)
        self.skipped = self._trace.skipped
        self.assumptions = [*self._trace.assumptions, f"{self._rate:g} requests come a second, evenly."]
