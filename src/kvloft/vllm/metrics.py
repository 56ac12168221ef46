"""What the host pool reports to Prometheus, through vLLM's own channel for offloading metrics.

The stock manager's CPU metrics keep their names and meanings, so that dashboards go on working; beside them stand
`vllm:kvloft_*` (vLLM lists and unregisters only what begins with "vllm:"). Counters are in blocks unless said otherwise.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata, OffloadingMetricMetadata
from vllm.v1.kv_offload.cpu.common import CPUOffloadingMetrics

from kvloft.metric_names import (
    BLOCKS,
    CAPACITY,
    DECLINED,
    EVICTED,
    FAILED,
    HITS,
    IGNORED_HINTS,
    LATE,
    LOADED,
    METRICS,
    MISSES,
    POLICY_BLOCKS,
    REFUSED,
    RESETS,
    STORED,
    TENANT_BLOCKS,
    Kind,
    Where,
)
from kvloft.telemetry import Counters, Stats

_TENANTS_MOST = 32
"""Tenants that have numbers of their own; Prometheus keeps each label's for ever."""
OTHERS = "(others)"


def metric_definitions(extra_config: Mapping[str, Any]) -> dict[str, OffloadingMetricMetadata]:
    """Every metric that `KvloftManager.get_stats` may report, for a spec's `build_metric_definitions`.

    Args:
        extra_config: `kv_connector_extra_config`; `store_threshold` brings one metric more.
    """
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    definitions: dict[str, OffloadingMetricMetadata] = CPUOffloadingSpec.build_metric_definitions(dict(extra_config))
    return definitions | definitions_of(Where.HOST)


def definitions_of(where: Where) -> dict[str, OffloadingMetricMetadata]:
    """Definitions of all metrics that are reported there."""
    kinds: dict[Kind, type[OffloadingMetricMetadata]] = {
        Kind.COUNTER: OffloadingCounterMetadata,
        Kind.GAUGE: OffloadingGaugeMetadata,
    }
    return {
        metric.name: kinds[metric.kind](documentation=metric.meaning, labelnames=metric.labels)
        for metric in METRICS
        if metric.where is where
    }


class MetricsReporter:
    """Turns what a pool has counted into what has changed since the last report. `skipping` tells whether stores may be
    skipped because their blocks were offered too seldom."""

    def __init__(self, skipping: bool) -> None:
        self._skipping = skipping
        self._skipped = 0
        self._allocations: list[int] = []
        self._counters = Counters()
        self._evicted: dict[str, int] = {}
        self._generation = 0
        self._tenants: dict[str, None] = {}
        self._of_tenants: Counter[tuple[str, str]] = Counter()

    def note_tenant(self, tenant: str, what: str, blocks: int) -> None:
        """A request of this tenant has "loaded" or "stored" so many blocks."""
        if tenant and blocks:
            if tenant not in self._tenants:
                if len(self._tenants) >= _TENANTS_MOST:
                    tenant = OTHERS
                else:
                    self._tenants[tenant] = None
            self._of_tenants[tenant, what] += blocks

    def note_allocation(self, blocks: int) -> None:
        """A store asked for so many blocks, whether or not it got them."""
        self._allocations.append(blocks)

    def note_skipped(self, blocks: int) -> None:
        """So many blocks of an offer were not stored because they were offered too seldom."""
        self._skipped += blocks

    def report(self, stats: Stats) -> OffloadingConnectorStats:
        """What has changed since the last report, and the sizes now."""
        report = OffloadingConnectorStats()
        now, before = stats.counters, self._counters
        for name, increase in (
            (HITS, now.hits - before.hits),
            (MISSES, now.misses - before.misses),
            (DECLINED, now.declined - before.declined),
            (LOADED, now.loaded - before.loaded),
            (STORED, now.stored - before.stored),
            (FAILED, now.failed - before.failed),
            (LATE, now.late - before.late),
            (IGNORED_HINTS, now.ignored_hints - before.ignored_hints),
            (RESETS, stats.generation - self._generation),
        ):
            if increase:
                report.increase_counter(name, increase)
        for name, counts, earlier in ((REFUSED, now.refused, before.refused), (EVICTED, stats.evicted, self._evicted)):
            for label, increase in _increases(counts, earlier):
                report.increase_counter(name, increase, (label,))
        for labels, increase in self._of_tenants.items():
            report.increase_counter(TENANT_BLOCKS, increase, labels)
        self._of_tenants.clear()
        self._counters, self._evicted, self._generation = deepcopy(now), stats.evicted, stats.generation
        self._set_gauges(report, stats)
        for blocks in self._allocations:
            report.observe_histogram(CPUOffloadingMetrics.CPU_ALLOCATION_SIZE, blocks)
        self._allocations.clear()
        if self._skipping:
            report.increase_counter(CPUOffloadingMetrics.STORES_SKIPPED, self._skipped)
            self._skipped = 0
        return report

    def _set_gauges(self, report: OffloadingConnectorStats, stats: Stats) -> None:
        for state in ("free", "writing", "ready", "pinned"):
            report.set_gauge(BLOCKS, getattr(stats, state), (state,))
        for name, size in stats.lists.items():
            report.set_gauge(POLICY_BLOCKS, size, (name,))
        report.set_gauge(CAPACITY, stats.capacity)
        written, read = stats.writing / stats.capacity, stats.pinned / stats.capacity
        report.set_gauge(CPUOffloadingMetrics.CPU_CACHE_USAGE_PERC, written + read)
        report.set_gauge(CPUOffloadingMetrics.CPU_CACHE_WRITE_USAGE_PERC, written)
        report.set_gauge(CPUOffloadingMetrics.CPU_CACHE_READ_USAGE_PERC, read)


def _increases(now: Mapping[str, int], before: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return ((label, count - before.get(label, 0)) for label, count in now.items() if count > before.get(label, 0))
