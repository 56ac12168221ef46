"""Spans of what moves between the engine and host memory."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kvloft.request import Key
from kvloft.tracing import Spans

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class TransferSpans:
    """Spans of stores and loads, from the scheduler's word that they may begin to its word that they have ended. Costs the
    same however many blocks there are."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._stores: dict[Key, Span] = {}
        """By the first block of each."""
        self._loads: dict[str, Span] = {}
        """By request: each has one load at a time."""

    def storing(self, keys: Sequence[Key]) -> None:
        """Blocks are on their way to host memory."""
        self._stores[keys[0]] = self._spans.begin("store", len(keys))

    def stored(self, keys: Collection[Key], success: bool) -> None:
        """They have arrived, or not."""
        first = next((first for first in self._stores if first in keys), None)
        if first is not None:
            self._spans.end(self._stores.pop(first), "ok" if success else "failed")

    def loading(self, request: str, blocks: int) -> None:
        """Blocks are on their way to the engine."""
        self._loads[request] = self._spans.begin("load", blocks)

    def loaded(self, request: str) -> None:
        """They have arrived."""
        span = self._loads.pop(request, None)
        if span is not None:
            self._spans.end(span, "ok")

    def give_up(self, outcome: str) -> None:
        """Nobody tells of the end of what is under way any more."""
        for span in (*self._stores.values(), *self._loads.values()):
            self._spans.end(span, outcome)
        self._stores.clear()
        self._loads.clear()
