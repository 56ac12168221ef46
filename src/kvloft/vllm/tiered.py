"""`TieredManager`: the manager with tiers below host memory."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvloft.pool import Lookup
from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, Tier
from kvloft.tiers.salted import Salted
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import CascadeConfig
from kvloft.vllm.compat import TELLS_OF_FLUSH
from kvloft.vllm.manager import RESULTS, KvloftManager
from kvloft.vllm.request import request_of
from kvloft.vllm.tier_metrics import TierReporter

_REST_STEPS = 16
"""Steps after a reset by which the worker has waited for its transfers: more than the batches that vLLM has under way."""
_STALL = 2.0
"""Seconds after which a step is taken to have waited for something else than computing."""


class TieredManager(KvloftManager):
    """Host memory as `KvloftManager` runs it, and a cascade of tiers below.

    What is found below counts as a hit that is pending, until it lies verified in host memory. A request's `kv_load_tiers`
    is respected. No call waits for a tier but `shutdown`.

    Args:
        tiers: the fastest first.
        view: bytes of a slot of host memory.
        release: lets go of host memory; called at shutdown, once no tier uses it any more.
        config: bounds of the cascade.
        keep_after_reset: whether a reset leaves the tiers' blocks to be found. vLLM resets its caches before it sleeps, but
            also after weights were changed in place, and then they would be wrong.
        mapped: called once every rank is known to have mapped host memory.
        **settings: as for `KvloftManager`.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        view: Callable[[int], Buffer],
        release: Callable[[], None] = lambda: None,
        config: CascadeConfig | None = None,
        keep_after_reset: bool = False,
        mapped: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.lookup = self._lookup
        self._tiers = [Salted(tier) for tier in tiers]
        self.cascade = Cascade(self.pool, view, self._tiers, config, spans=self._spans)
        self._keep_after_reset = keep_after_reset
        self._release = release
        self._mapped: Callable[[], None] | None = mapped
        self._places = {tier.name: Locality.REMOTE if tier.remote else Locality.LOCAL for tier in tiers}
        self._residency = self.cascade.watch() if self._announced is not None else None
        self._live: dict[str, Request] = {}
        """Requests that have not ended, by vLLM's id."""
        self._tier_metrics = TierReporter()
        self._computed = 0
        """Tokens whose blocks were to be stored in this step: the engine computes them meanwhile."""
        self._step_began = 0.0
        self._steps = 0
        self._resting: deque[tuple[int, list[int]]] = deque()
        """Slots that the worker used when the cache was reset, and the step at which it surely does no more."""

    # Requests.

    def on_new_request(self, req_context: ReqContext) -> Any:
        context = super().on_new_request(req_context)
        self._live[req_context.req_id] = request_of(req_context)
        return context

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._live.pop(req_context.req_id, None)
        self.cascade.finish(request_of(req_context))
        super().on_request_finished(req_context)

    # Lookup and load.

    def _lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return RESULTS[self.cascade.lookup(key, request_of(req_context), self._allowed(req_context))]

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        source = self.cascade.source(key, request_of(req_context))
        if source is None:
            return CacheHitSource.HOST
        # vLLM has no name for a remote store.
        return CacheHitSource.DISK if self._places[source] is Locality.LOCAL else CacheHitSource.EXTERNAL_UNSPECIFIED

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        spec = super().prepare_load(keys, req_context)
        self.cascade.loading(list(dict.fromkeys(keys)), request_of(req_context))
        return spec

    # Store.

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is not None:
            new = set(output.keys_to_store)
            self.cascade.used([key for key in keys if key not in new and self.pool.lookup(key) is Lookup.HIT])
            self._computed += len(new) * self.cascade.config.block_tokens
        return output

    def _stored(self, keys: Sequence[Key]) -> None:
        if self._mapped is not None:
            # vLLM tells of a store when the last rank has copied its part.
            self._mapped()
            self._mapped = None
        self.cascade.stored(keys)

    # Once a step.

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        now = time.monotonic()
        if self._computed and now - self._step_began < _STALL:
            self.cascade.prefill.observe(self._computed, now - self._step_began)
        self._computed, self._step_began = 0, now
        self._steps += 1
        while not TELLS_OF_FLUSH and self._resting and self._resting[0][0] <= self._steps:
            self.cascade.let_go(self._resting.popleft()[1])
        for identity in context.new_req_ids:
            request = self._live.get(identity)
            if request is not None:
                self.cascade.started(request)
        self.cascade.step()
        self._announce()

    def has_pending_work(self) -> bool:
        return self.cascade.has_pending_work()

    def reset_cache(self) -> None:
        """Drop every chunk in host memory, and find none in the tiers either, unless they were to be kept. What a tier still
        reads or writes stays out of use until it answers, so nothing is waited for."""
        # The worker's transfers go on. vLLM has them waited for before the worker begins another, but a tier would not wait;
        # 0.32 does not tell of their end. A slot in a tier's hands at the same time is let go by both.
        in_use = self.pool.busy_slots()
        self.cascade.reset(in_use)
        if not self._keep_after_reset:
            for tier in self._tiers:
                tier.renew()
        if self._residency is not None:
            # vLLM tells of a reset by a word that clears an index of everything, tiers included.
            self._residency.repeat() if self._keep_after_reset else self._residency.forget()
        self._resting.append((self._steps + _REST_STEPS, in_use))
        self._announce()
        self._give_up_spans("reset")

    def on_reset_flushed(self) -> None:
        """vLLM 0.33: the worker's transfers from before the last reset have ended."""
        while self._resting:
            self.cascade.let_go(self._resting.popleft()[1])

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What changed in host memory and in each tier since the last call. Replayed in order, it gives exactly the readable
        chunks of host memory and of the tiers that report changes; of a shared store, what this engine last saw there. Tiers
        come first, so that a chunk that goes down is known to be there before it is known to have left host memory."""
        host = super().take_events()
        if self._residency is None:
            return host
        changes = groupby(self._residency.take(), lambda change: (change.tier, change.stored, change.certain))
        below = [
            OffloadingEvent(
                keys=[cast(OffloadKey, change.key) for change in same],
                medium=Medium.STORAGE,
                removed=not stored,
                locality=self._places[tier],
                ownership=tier,
                removal_expected=certain,
            )
            for (tier, stored, certain), same in changes
        ]
        return [*below, *host]

    def get_stats(self) -> OffloadingConnectorStats:
        report = super().get_stats()
        self._tier_metrics.report(self.cascade.stats(), report)
        return report

    def shutdown(self) -> None:
        """Let the tiers finish and close them. Host memory stays mapped if one of them hangs."""
        super().shutdown()
        if self.cascade.close():
            self._release()

    # Steps.

    def _allowed(self, req_context: ReqContext) -> Collection[str] | None:
        wanted = req_context.load_tier_filter
        if wanted is TierFilter.ALL:
            return None
        return [name for name, place in self._places.items() if wanted.allows(Medium.STORAGE, place)]
