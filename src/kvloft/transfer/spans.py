"""A span for each job of a tier."""

from collections import Counter
from typing import TYPE_CHECKING

from kvloft.tiers.base import JobResult, Status
from kvloft.tracing import Spans
from kvloft.transfer.link import Course, Job, Link

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_NAMES = {Course.UP: "promote", Course.DOWN: "demote"}


class JobSpans:
    """An observer of tiers that makes spans of their jobs. What is overdue ends when it is answered after all."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._open: dict[int, Span] = {}
        """By job number."""

    def submitted(self, link: Link, job: Job) -> None:
        self._open[job.number] = self._spans.begin(_NAMES[job.course], len(job.keys), link.name, link.tier.remote)

    def answered(self, link: Link, job: Job, result: JobResult) -> None:
        span = self._open.pop(job.number)
        if not span.is_recording():
            return
        counts = Counter(status.value for status in result.statuses)
        if len(counts) == 1:
            self._spans.end(span, next(iter(counts)), result.error)
        else:
            self._spans.end(span, "failed" if counts[Status.FAILED.value] else "partial", result.error, counts)

    def close(self) -> None:
        """End what is still open: nobody waits for it any more."""
        for span in self._open.values():
            self._spans.end(span, "abandoned")
        self._open.clear()
