"""What the cascade reports to Prometheus, beside the pool's metrics."""

from collections import Counter

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata, OffloadingMetricMetadata

from kvloft.metric_names import CASCADE, OUTCOMES, PREFILL, TIER_MEDIUM, TIER_OPEN, TIER_SIZE, TIER_TRANSFERS
from kvloft.transfer.breaker import BreakerState
from kvloft.transfer.cascade import CascadeStats, LinkStats

_COUNTERS = {
    TIER_TRANSFERS: (
        ("tier", "what"),
        "Blocks by what became of them between host memory and a tier: load_ok, load_miss, load_failed, store_ok, "
        "store_dropped, store_failed, present, dropped_backpressure, dropped_gone, dropped_open, shunned, overdue; "
        "probes and unasked count jobs, raised counts calls.",
    ),
    TIER_MEDIUM: (("tier", "what"), "What a tier says of its medium: stored, loaded, corrupt, evicted, bytes_written, ..."),
    OUTCOMES: (("what",), "Blocks refused (beyond the prefix that fits) or expired; requests abandoned."),
}
_GAUGES = {
    TIER_SIZE: (("tier", "what"), "Of a tier: blocks, bytes, capacity_bytes; slots loading and storing; blocks queued."),
    TIER_OPEN: (("tier", "course"), "1 if a tier is left alone (its breaker is open or probing), by course: loads, stores."),
    CASCADE: (
        ("what",),
        "Requests waiting; blocks wanted, loading, held for requests that wait; slots set_aside under loads given up.",
    ),
    PREFILL: ((), "Tokens a second that the engine computes, as configured or measured."),
}


def tier_metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Every metric that `TierReporter` may report."""
    definitions: dict[str, OffloadingMetricMetadata] = {}
    for name, (labels, documentation) in _COUNTERS.items():
        definitions[name] = OffloadingCounterMetadata(documentation=documentation, labelnames=labels)
    for name, (labels, documentation) in _GAUGES.items():
        definitions[name] = OffloadingGaugeMetadata(documentation=documentation, labelnames=labels)
    return definitions


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
        for course, state in (("loads", link.loads), ("stores", link.stores)):
            report.set_gauge(TIER_OPEN, int(state is not BreakerState.CLOSED), (name, course))

    def _increase(self, report: OffloadingConnectorStats, metric: str, labels: tuple[str, ...], count: int) -> None:
        increase = count - self._before[metric, labels]
        self._before[metric, labels] = count
        if increase:
            report.increase_counter(metric, increase, labels)
