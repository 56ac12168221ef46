"""What the cascade reports to Prometheus, beside the pool's metrics."""

from collections import Counter

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingMetricMetadata

from kvloft.metric_names import (
    CASCADE,
    OUTCOMES,
    PREFILL,
    TIER_JOB_SECONDS,
    TIER_MEDIUM,
    TIER_OPEN,
    TIER_SIZE,
    TIER_TRANSFERS,
    WAITING_SECONDS,
    Where,
)
from kvloft.transfer.breaker import BreakerState
from kvloft.transfer.cascade import CascadeStats, LinkStats
from kvloft.vllm.metrics import definitions_of


def tier_metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Every metric that `TierReporter` may report."""
    return definitions_of(Where.CASCADE)


class TierReporter:
    """Turns what a cascade has counted into what has changed since the last report."""

    def __init__(self) -> None:
        self._before: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def report(self, stats: CascadeStats, report: OffloadingConnectorStats) -> None:
        """Add what has changed since the last report, and the sizes now."""
        for what, count in stats.counters.items():
            self._increase(report, OUTCOMES, (what,), count)
        for what in ("waiting", "wanted", "loading", "held", "set_aside"):
            report.set_gauge(CASCADE, getattr(stats, what), (what,))
        report.set_gauge(WAITING_SECONDS, stats.waiting_seconds)
        if stats.prefill_tokens_per_second is not None:
            report.set_gauge(PREFILL, stats.prefill_tokens_per_second)
        for name, link in stats.tiers.items():
            self._report_tier(report, name, link)

    def _report_tier(self, report: OffloadingConnectorStats, name: str, link: LinkStats) -> None:
        for what, count in link.counters.items():
            self._increase(report, TIER_TRANSFERS, (name, what), count)
        for what, count in link.tier.counters.items():
            self._increase(report, TIER_MEDIUM, (name, what), count)
        sizes = {"blocks": link.tier.blocks, "bytes": link.tier.bytes, "capacity_bytes": link.tier.capacity_bytes or 0}
        sizes |= {"loading": link.loading, "storing": link.storing, "queued": link.queued}
        for what, size in sizes.items():
            report.set_gauge(TIER_SIZE, size, (name, what))
        report.set_gauge(TIER_JOB_SECONDS, link.oldest_job_seconds, (name,))
        for course, state in (("loads", link.loads), ("stores", link.stores)):
            report.set_gauge(TIER_OPEN, int(state is not BreakerState.CLOSED), (name, course))

    def _increase(self, report: OffloadingConnectorStats, metric: str, labels: tuple[str, ...], count: int) -> None:
        increase = count - self._before[metric, labels]
        self._before[metric, labels] = count
        if increase:
            report.increase_counter(metric, increase, labels)
