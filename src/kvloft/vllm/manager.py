"""`KvloftManager`: vLLM's scheduler-side offload manager on kvloft's `BlockPool`."""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvloft.errors import ConfigError
from kvloft.policies import Policy
from kvloft.policies.admission import make_admission
from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key
from kvloft.telemetry import EventKind
from kvloft.tracing import Spans
from kvloft.vllm.compat import failed_store_events, positions_of
from kvloft.vllm.metrics import MetricsReporter
from kvloft.vllm.offers import OfferCounter, by_position
from kvloft.vllm.recording import Recording
from kvloft.vllm.request import request_of
from kvloft.vllm.spans import TransferSpans

RESULTS = {
    Lookup.MISS: LookupResult.MISS,
    Lookup.PENDING: LookupResult.HIT_PENDING,
    Lookup.HIT: LookupResult.HIT,
}


class KvloftManager(OffloadingManager):
    """Decides for vLLM's scheduler which chunks live in host memory. Takes the place of `CPUOffloadingManager`.

    vLLM's chunks are kvloft's blocks. Every promise of `BlockPool` holds here: a store that can fit is never refused, a
    refused one changes nothing, a request's own chain does not leave for its later blocks, and completions may come late,
    twice, in any order or after a reset. Duplicate keys in a call are one block.

    Args:
        num_chunks: capacity in chunks, at least 1.
        cache_policy: a kvloft policy by its name or its class's name.
        cache_policy_module_path: where to import a kvloft `Policy` class of that name from; None or "kvloft.vllm" for those
            that kvloft knows.
        enable_events: whether to collect KV events for `take_events`.
        store_threshold: store a chunk only when it has been offered so many times; below 2 at once.
        max_tracker_size: chunks whose offers are counted; the one offered longest ago is forgotten first.
        info: facts for vLLM 0.33's info metric (`CPUOffloadingInfo`).
        recording: where to record each request; None records nothing.
        chunk_bytes: of each chunk, for spans; None if not known.
        admission: a rule for what is taken in, by its name in `kvloft.policies.admission.ADMISSIONS`.
        quotas: by tenant, the share of the capacity from which it makes room from its own chunks.

    Raises:
        ConfigError: the capacity is no positive integer, or the policy or the rule is unknown.
    """

    __slots__ = ("lookup",)

    medium = Medium.CPU
    lookup: Callable[[OffloadKey, ReqContext], LookupResult]  # type: ignore[assignment]
    """What there is of a chunk. vLLM asks for each chunk of each waiting request at every step, so this is no method: only
    the index itself runs."""

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str = "default",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        info: Any = None,
        recording: Recording | None = None,
        chunk_bytes: int | None = None,
        admission: str = "everything",
        quotas: Mapping[str, float] | None = None,
    ) -> None:
        self.pool = BlockPool(
            num_chunks,
            find_policy(cache_policy, cache_policy_module_path),
            make_admission(admission, num_chunks),
            quotas=quotas,
        )
        self.lookup = self.pool.answers(*RESULTS.values())
        self._events: list[OffloadingEvent] = []
        self._announced: dict[OffloadKey, None] | None = {} if enable_events else None
        """Chunks that vLLM has been told are readable."""
        self._failed: dict[Key, None] = {}
        """Chunks whose store has failed since events were last taken."""
        self._offers = OfferCounter(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        self._metrics = MetricsReporter(skipping=self._offers is not None)
        self._info = info
        self._recording = recording
        self._spans = Spans.find(chunk_bytes)
        self._transfers = TransferSpans(self._spans) if self._spans is not None else None

    # Requests.

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        request_of(req_context, self._ignore_hints)
        if self._recording is not None:
            self._recording.arrived(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        if self._recording is not None:
            self._recording.ended(req_context)
        self.pool.finish(request_of(req_context))

    # Lookup and load.

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin chunks until `complete_load`; one slot for each of `keys`, in their order, duplicates included.

        Raises:
            BlockNotReady: one of them is not readable; then none is pinned.
        """
        request = request_of(req_context)
        plan = self.pool.prepare_load(keys, request)
        self._use_head(plan.keys, req_context)
        if self._recording is not None:
            self._recording.served(req_context, plan.keys)
        if self._transfers is not None and plan.keys:
            self._transfers.loading(req_context.req_id, len(plan.keys))
        self._metrics.note_tenant(request.tenant, "loaded", len(plan.keys))
        if len(plan.keys) == len(keys):
            return _spec(plan.slots)
        slots = dict(zip(plan.keys, plan.slots, strict=True))
        return CPULoadStoreSpec([slots[key] for key in keys])

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.pool.complete_load(keys, request_of(req_context))
        if self._transfers is not None:
            self._transfers.loaded(req_context.req_id)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Count one use of those that are readable, as if a request had found them and ended. vLLM's scheduler never asks
        for it."""
        visitor = replace(request_of(req_context), id=object())
        self.pool.prepare_store([key for key in keys if self.pool.lookup(key) is Lookup.HIT], visitor)
        self.pool.finish(visitor)

    # Store.

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        request = request_of(req_context)
        offered: Collection[OffloadKey] = keys
        if self._offers is not None:
            offered = list(dict.fromkeys(keys))
            self._offers.count(offered)
            wanted = [key for key in offered if key in self.pool or self._offers.suffice(key)]
            self._metrics.note_skipped(len(offered) - len(wanted))
            offered = wanted
        offered = list(offered)
        chain = by_position(offered, req_context)
        plan = self.pool.prepare_store(chain, request)
        if plan is not None and chain is not offered:
            slots = dict(zip(plan.keys, plan.slots, strict=True))
            stored: list[Key] = [key for key in dict.fromkeys(offered) if key in slots]
            plan = plan._replace(keys=stored, slots=array("q", map(slots.__getitem__, stored)))
        new = len(plan.keys) if plan else sum(key not in self.pool for key in {*offered})
        if new:
            self._metrics.note_allocation(new)
        self._announce()
        if plan is None:
            return None
        if self._transfers is not None and plan.keys:
            self._transfers.storing(plan.keys)
        self._metrics.note_tenant(request.tenant, "stored", len(plan.keys))
        return PrepareStoreOutput(_offload_keys(plan.keys), _spec(plan.slots), _offload_keys(plan.evicted))

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        done = self.pool.complete_store(keys, request_of(req_context), success)
        if self._transfers is not None:
            self._transfers.stored(keys, success)
        if success:
            self._stored(done)
        self._announce()
        if not success and self._announced is not None:
            self._failed.update(dict.fromkeys(done))

    def reset_cache(self) -> None:
        """Drop every chunk. Live requests go on with the same contexts; completions of older jobs change nothing."""
        self.pool.reset()
        self._announce()
        self._give_up_spans("reset")

    def shutdown(self) -> None:
        if self._recording is not None:
            self._recording.close()
        self._give_up_spans("abandoned")

    # Once a step.

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What changed since the last call. Replayed in order, it gives exactly the readable chunks."""
        events, self._events = self._events, []
        # A retry may have brought back what failed before; its notes are of use again.
        failed = [key for key in self._failed if key not in self.pool]
        self._failed.clear()
        return events + (failed_store_events(_offload_keys(failed), self.medium) if failed else [])

    def get_stats(self) -> OffloadingConnectorStats:
        return self._metrics.report(self.pool.stats())

    # vLLM 0.33.

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """No lock: only the scheduler's thread enters this manager."""
        return nullcontext()

    def config_info(self) -> Sequence[Mapping[str, str | int | float | bool]]:
        return [self._info.as_config_info() if self._info is not None else {}]

    # Steps.

    def _use_head(self, loaded: Sequence[Key], context: ReqContext) -> None:
        """Count the use of what comes before the loaded chunks. The GPU has these, so vLLM never asks for them; unseen, the
        head of a hot prefix would look colder than its tail."""
        positions = positions_of(context)
        if not loaded or loaded[0] == next(iter(positions), None):
            return
        placed = [key for key in loaded if key in positions]
        if not placed:
            return
        first = cast(bytes, min(placed, key=positions.__getitem__))
        group, start = first[-4:], positions[first]
        before = (key for key, position in positions.items() if position < start and cast(bytes, key)[-4:] == group)
        self.pool.prepare_store([key for key in before if self.pool.lookup(key) is Lookup.HIT], request_of(context))

    def _give_up_spans(self, outcome: str) -> None:
        if self._transfers is not None:
            self._transfers.give_up(outcome)

    def _ignore_hints(self, n: int) -> None:
        self.pool.counters.ignored_hints += n

    def _stored(self, keys: Sequence[Key]) -> None:
        """Chunks whose bytes have arrived in host memory."""

    def _announce(self) -> None:
        """Translate what the pool has to tell. vLLM has no word for "all are gone", so a reset names them all."""
        for event in self.pool.take_events():
            if self._announced is None:
                continue
            if event.kind is EventKind.STORED:
                keys = _offload_keys(event.keys)
                self._announced.update(dict.fromkeys(keys))
            elif event.kind is EventKind.REMOVED:
                keys = _offload_keys(event.keys)
                for key in keys:
                    del self._announced[key]
            else:
                keys = list(self._announced)
                self._announced.clear()
            if keys:
                removed = event.kind is not EventKind.STORED
                self._events.append(OffloadingEvent(keys=keys, medium=self.medium, removed=removed))


def _offload_keys(keys: Iterable[Key]) -> list[OffloadKey]:
    return cast(list[OffloadKey], list(keys))


def _spec(slots: "array[int]") -> CPULoadStoreSpec:
    # vLLM makes an array of them, whatever they are.
    return CPULoadStoreSpec(cast(list[int], slots))


def find_policy(name: str, module_path: str | None = None) -> str | type[Policy]:
    """What to give `BlockPool` for a policy named in vLLM's configuration.

    Raises:
        ConfigError: the module has no kvloft policy of that name.
    """
    from kvloft.vllm.policy import KvloftCachePolicy, find_cache_policy

    if module_path in (None, "kvloft.vllm"):
        try:
            return find_cache_policy(name).name
        except AttributeError as error:
            raise ConfigError(f"cache_policy: {error}") from None
    found = getattr(import_module(module_path), name, None)
    if isinstance(found, type) and issubclass(found, KvloftCachePolicy):
        return found.name
    if isinstance(found, type) and issubclass(found, Policy):
        return found
    raise ConfigError(
        f"cache_policy_module_path: {module_path!r} has no kvloft Policy class {name!r}; a policy written for vLLM's "
        f"stock manager (CachePolicy) runs there, not here"
    )
