"""OpenTelemetry spans of what moves, through its API only: what becomes of them is up to the process that sets a provider.

| span | from | to |
|---|---|---|
| `kvloft.store` | the scheduler has room in host memory | all ranks have copied the blocks there |
| `kvloft.load` | the blocks are pinned in host memory | all ranks have copied them to the engine |
| `kvloft.demote` | a job is handed to a tier | the tier has answered |
| `kvloft.promote` | the same, upwards | |

Attributes: `kvloft.blocks`, `kvloft.bytes`, `kvloft.tier` (demote and promote), `kvloft.outcome`: "ok", "miss" (promote: the
blocks are not there), "dropped" (demote: no room for them), "failed", "partial" where they did not all end alike (then
`kvloft.blocks.ok` and so on say how many did), "reset" and "abandoned" for what nobody waits for any more. Where something
failed, `error.type` is set, and the span's status. Spans of shared stores are of kind CLIENT, the others INTERNAL. There is
one span a job, none a block.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

try:
    from opentelemetry.trace import SpanKind, StatusCode, get_tracer
except ImportError:
    get_tracer = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class Spans:
    """Begins and ends spans. Made once for a manager; until a provider is set they are no-ops, from then on they are not.

    Args:
        block_bytes: of each block; None if not known, then spans tell no bytes.
    """

    def __init__(self, tracer: "Tracer", block_bytes: int | None = None) -> None:
        self._tracer = tracer
        self._block_bytes = block_bytes

    @classmethod
    def find(cls, block_bytes: int | None = None) -> "Spans | None":
        """With the process's tracer; None if OpenTelemetry's API is not installed."""
        if get_tracer is None:
            return None
        from kvloft import __version__

        return cls(get_tracer("kvloft", __version__), block_bytes)

    def begin(self, name: str, blocks: int, tier: str | None = None, remote: bool = False) -> "Span":
        """A span that begins now.

        Args:
            name: "store", "load", "demote" or "promote".
            blocks: how many move.
            tier: where to or from.
            remote: whether that is over a network.
        """
        span = self._tracer.start_span(f"kvloft.{name}", kind=SpanKind.CLIENT if remote else SpanKind.INTERNAL)
        if span.is_recording():
            attributes: dict[str, str | int] = {"kvloft.blocks": blocks}
            if self._block_bytes is not None:
                attributes["kvloft.bytes"] = blocks * self._block_bytes
            if tier is not None:
                attributes["kvloft.tier"] = tier
            span.set_attributes(attributes)
        return span

    @staticmethod
    def end(span: "Span", outcome: str, error: str | None = None, counts: Mapping[str, int] | None = None) -> None:
        """The span ends now.

        Args:
            span: from `begin`.
            outcome: what became of its blocks.
            error: what went wrong, if something failed.
            counts: blocks by how they ended, if not all of them alike.
        """
        if span.is_recording():
            span.set_attribute("kvloft.outcome", outcome)
            for status, count in (counts or {}).items():
                span.set_attribute(f"kvloft.blocks.{status}", count)
            if outcome == "failed":
                span.set_attribute("error.type", "kvloft.transfer_failed")
                span.set_status(StatusCode.ERROR, error)
        span.end()
