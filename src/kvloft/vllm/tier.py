"""`DiskTier`: kvloft's disk below vLLM's stock `TieringOffloadingSpec`, by configuration alone."""

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, cast

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvloft import __version__
from kvloft.config import format_size
from kvloft.metric_names import DISK_TIER, DISK_TIER_SIZE, Where
from kvloft.settings.stock import read_stock_disk
from kvloft.tiers.base import Buffer, Presence, Status
from kvloft.tiers.salted import Salted
from kvloft.vllm.compat import join_logging
from kvloft.vllm.metrics import definitions_of
from kvloft.vllm.namespace import namespace_of

_log = logging.getLogger(__name__)
_RESULTS = {Presence.HIT: LookupResult.HIT, Presence.MISS: LookupResult.MISS, Presence.UNKNOWN: LookupResult.RETRY}
_SHUN_SECONDS = 10.0
"""For how long a block that the medium failed to deliver is a miss. Asked again at once it would fail again, for ever."""
_SHUNNED_MOST = 100_000


class DiskTier(SecondaryTierManager):
    """A secondary tier of vLLM's: bounded, checksummed, found again after a restart.

    In `kv_connector_extra_config`, beside `spec_name` "TieringOffloadingSpec":

        "secondary_tiers": [
            {"type": "DiskTier", "module_path": "kvloft.vllm", "path": "/var/cache/kvloft", "capacity": "200GiB"}
        ]

    Args:
        offloading_spec, primary_kv_view, tier_type, backpressure_detector: from vLLM.
        settings: of `kvloft.settings.stock.DISK`.

    Raises:
        ConfigError: naming every setting that is wrong.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        plan, self._keep, locality = read_stock_disk(settings, f"secondary_tiers, {tier_type}")
        self.locality = Locality(locality) if locality is not None else None
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        block_bytes = int(self._rows.shape[1])
        self.tier = Salted(plan.open(block_bytes, namespace_of(offloading_spec.config, block_bytes, "vllm", plan.label)))
        join_logging()
        _log.info("kvloft %s below vLLM's own tiering: blocks of %s in %s", __version__, format_size(block_bytes), plan)
        self._jobs: dict[int, TransferJob] = {}
        self._shunned: dict[OffloadKey, float] = {}
        """Blocks that the medium failed to deliver, and until when they are misses."""
        self._told: dict[str, int] = {}
        self._listening = bool(offloading_spec.kv_events_config.enable_kv_cache_events)
        self._known: dict[OffloadKey, None] = {}
        """Blocks that vLLM has been told are on disk."""
        self._events: list[OffloadingEvent] = []
        self._hear()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self._shunned and self._shunned.get(key, 0.0) > time.monotonic():
            return LookupResult.MISS
        return _RESULTS[self.tier.lookup([key])[0]]

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._jobs[job_metadata.job_id] = job_metadata
        self.tier.submit_store(job_metadata.job_id, list(job_metadata.keys), self._buffers(job_metadata))

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._jobs[job_metadata.job_id] = job_metadata
        self.tier.submit_load(job_metadata.job_id, list(job_metadata.keys), self._buffers(job_metadata))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        finished = []
        for result in self.tier.poll():
            job = self._jobs.pop(result.job)
            good = [key for key, status in zip(job.keys, result.statuses, strict=True) if status is Status.OK]
            if job.is_promotion:
                self._shun(key for key, status in zip(job.keys, result.statuses, strict=True) if status is Status.FAILED)
                success = len(good) == len(result.statuses)
            else:
                success = Status.FAILED not in result.statuses
            finished.append(
                JobResult(
                    result.job,
                    success,
                    successful_keys=good if job.is_promotion and not success else None,
                    transfer_time=result.seconds,
                    transfer_bytes=len(good) * self.block_size_bytes,
                )
            )
        return finished

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.tier.touch(list(keys))

    def drain_jobs(self) -> None:
        """vLLM calls this when it resets its caches, and only then."""
        self.tier.drain()
        if not self._keep:
            self.tier.renew()
        self._hear()
        known = list(self._known)
        self._tell(known, False)
        if self._keep:
            # vLLM tells of a reset by a word that clears an index of everything.
            self._tell(known, True)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What came to the disk and left it since the last call."""
        self._hear()
        events, self._events = self._events, []
        return events

    def shutdown(self) -> None:
        self.tier.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """What `get_stats` may report."""
        return definitions_of(Where.STOCK)

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        report, stats = OffloadingConnectorStats(), self.tier.stats()
        for what, count in stats.counters.items():
            if count > self._told.get(what, 0):
                report.increase_counter(DISK_TIER, count - self._told.get(what, 0), (what,))
                self._told[what] = count
        sizes = {"blocks": stats.blocks, "bytes": stats.bytes, "capacity_bytes": stats.capacity_bytes or 0}
        for what, size in sizes.items():
            report.set_gauge(DISK_TIER_SIZE, size, (what,))
        return report

    # Steps.

    def _hear(self) -> None:
        changes = self.tier.take_changes() if self._listening else []
        for stored, same in groupby(changes, attrgetter("stored")):
            self._tell([cast(OffloadKey, change.key) for change in same], stored)

    def _tell(self, keys: Sequence[OffloadKey], stored: bool) -> None:
        news = [key for key in keys if (key in self._known) != stored]
        if not news:
            return
        if stored:
            self._known.update(dict.fromkeys(news))
        else:
            for key in news:
                del self._known[key]
        self._events.append(
            OffloadingEvent(
                keys=news,
                medium=self.medium,
                removed=not stored,
                locality=self.locality,
                ownership=self.tier_type,
                removal_expected=True,
            )
        )

    def _buffers(self, job: TransferJob) -> list[Buffer]:
        return [memoryview(self._rows[chunk]) for chunk in job.chunk_ids]

    def _shun(self, keys: Iterable[OffloadKey]) -> None:
        now = time.monotonic()
        if len(self._shunned) > _SHUNNED_MOST:
            self._shunned.clear()
        self._shunned.update((key, now + _SHUN_SECONDS) for key in keys)
