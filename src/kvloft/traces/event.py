"""One request of a trace: what was asked, when, and what the caller said about it."""

from collections.abc import Sequence

import msgspec

from kvloft.request import Request


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One prompt, as a trace tells it.

    Args:
        keys: its blocks in prefix order, distinct. Equal ids mean equal prefixes up to and including that block, within
            the whole trace. The last block may be partial.
        time: arrival in seconds since the trace began; None if the trace has no times.
        input_tokens: length of the prompt.
        output_tokens: length of the answer; 0 if unknown.
        session: the conversation it belongs to, if known.
        tenant: whose request it is.
        last: the caller said that the conversation is over after it. Never guessed from what follows in the trace.
        hits: blocks that the recorded run served from its cache; None if the trace was not recorded.
        ttl: the caller said that the blocks are of no use so many seconds after the request's end.
        priority: what the caller said they are worth; 0 is normal.
        pin_until: time, in seconds since the trace began, until which the caller wanted them to stay.
    """

    keys: Sequence[int]
    time: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    session: str | None = None
    tenant: str = ""
    last: bool = False
    hits: int | None = None
    ttl: float | None = None
    priority: int = 0
    pin_until: float | None = None

    def request(self, id: int) -> Request:
        """The request that the pool sees, under an id that is unique in the replay."""
        return Request(id, self.tenant, self.session, self.last, self.ttl, self.priority, self.pin_until)
