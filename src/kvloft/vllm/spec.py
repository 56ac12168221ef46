"""`KvloftSpec`: kvloft as vLLM's offloading spec, named in `kv_connector_extra_config`."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingMetricMetadata, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvloft import __version__
from kvloft.config import format_size
from kvloft.errors import ConfigError
from kvloft.settings.spec import HOST, read_spec
from kvloft.tiers import Tier
from kvloft.tiers.settings import TierPlan
from kvloft.transfer import Arena
from kvloft.vllm.compat import engine_config, join_logging, memory_facts
from kvloft.vllm.manager import KvloftManager
from kvloft.vllm.metrics import metric_definitions
from kvloft.vllm.namespace import namespace_of
from kvloft.vllm.recording import Recording
from kvloft.vllm.region import SharedRegion, open_rank_region
from kvloft.vllm.tier_metrics import tier_metric_definitions
from kvloft.vllm.tiered import TieredManager
from kvloft.vllm.worker import KvloftWorker

_log = logging.getLogger(__name__)


class KvloftSpec(CPUOffloadingSpec):
    """Host memory run by kvloft's manager. On the CPU platform kvloft's worker moves the bytes, elsewhere vLLM's own does.

    Its settings, in `kv_connector_extra_config`, are those of `kvloft.settings.spec.SPEC`; `kvloft config --explain` tells
    what each means.

    Raises:
        ConfigError: naming every setting that is wrong.
    """

    worker_class: ClassVar[type[KvloftWorker]] = KvloftWorker
    """What moves the bytes on the CPU platform."""

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Every metric that the manager may report, by its Prometheus name."""
        definitions = metric_definitions(extra_config)
        if extra_config.get("tiers"):
            definitions |= tier_metric_definitions()
        return definitions

    def __init__(self, config: OffloadingConfig) -> None:
        settings = _read(config)
        super().__init__(replace(config, extra_config={**config.extra_config, **settings}))
        self.transfer_threads: int = settings["transfer_threads"]
        self._tiers: list[TierPlan] = settings["tiers"]
        self._cpu_worker: KvloftWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's side; made once."""
        if self._manager is None:
            settings = {
                "num_chunks": self.num_chunks,
                "cache_policy": self.eviction_policy,
                "enable_events": self.kv_events_config.enable_kv_cache_events,
                "store_threshold": self.extra_config["store_threshold"],
                "max_tracker_size": self.extra_config["max_tracker_size"],
                "cache_policy_module_path": self.cache_policy_module_path,
                "admission": self.extra_config["admission"],
                "quotas": self.extra_config["quotas"],
                "info": memory_facts(self),
                "recording": self._recording(),
                "chunk_bytes": self.kv_bytes_per_chunk,
            }
            self._manager = self._tiered_manager(settings) if self._tiers else KvloftManager(**settings)
            join_logging()
            _log.info("%s", self._in_words())
        return self._manager

    def _in_words(self) -> str:
        """What is configured and how big, in one line."""
        size, tokens = self.num_chunks * self.kv_bytes_per_chunk, self.tokens_per_block[0] * self.blocks_per_chunk
        parts = [
            f"kvloft {__version__} for {self.config.model.name}: {format_size(size)} of host memory, "
            f"{self.num_chunks} blocks of {format_size(self.kv_bytes_per_chunk)} and {tokens} tokens, "
            f"policy {self.eviction_policy}"
        ]
        parts += [f"then {plan}" for plan in self._tiers]
        if self._tiers:
            parts.append(f"{self.extra_config['cascade'].admission} goes down")
        if path := self.extra_config["record"]:
            parts.append(f"requests recorded in {path}")
        return "; ".join(parts)

    def _recording(self) -> Recording | None:
        path = self.extra_config["record"]
        facts = {"model": self.config.model.name, "policy": self.eviction_policy, "capacity": self.num_chunks}
        return Recording(path, facts, self.tokens_per_block[0] * self.blocks_per_chunk) if path else None

    def _tiered_manager(self, settings: Mapping[str, Any]) -> TieredManager:
        writer = "kvloft" if current_platform.is_cpu() else "vllm"
        tiers: list[Tier] = []
        host = self._open_host()
        try:
            for plan in self._tiers:
                namespace = namespace_of(self.config, host.slot_bytes, writer, plan.label)
                tiers.append(plan.open(host.slot_bytes, namespace, host.bytes.data))
            tokens = self.tokens_per_block[0] * self.blocks_per_chunk
            config = replace(self.extra_config["cascade"], block_tokens=tokens)
            keep = self.extra_config["tiers_after_reset"] == "keep"
            if isinstance(host, SharedRegion):
                settings = {**settings, "mapped": host.hide}
            return TieredManager(tiers, host.view, partial(_close, host), config, keep, **settings)
        except BaseException:
            for tier in tiers:
                tier.close()
            _close(host)
            raise

    def _open_host(self) -> "Arena | SharedRegion":
        """Host memory as the scheduler's side sees it."""
        if current_platform.is_cpu():
            return self.open_arena("scheduler")
        return SharedRegion(self.config.engine_id, self.num_chunks, self.kv_bytes_per_chunk, self.cpu_page_size_per_worker)

    def _uses_shared_region(self) -> bool:
        """Tiers need host memory that the scheduler's process can reach."""
        return super()._uses_shared_region() or (bool(self.extra_config.get("tiers")) and not current_platform.is_cpu())

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The side of one rank; made once."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._cpu_worker is None:
            rank = self.config.parallel.rank
            cell = self.cpu_page_size_per_worker
            arena = self.open_arena(f"rank {rank}")
            try:
                self._cpu_worker = self.worker_class(
                    kv_caches, arena, self.blocks_per_chunk, (rank * cell, cell), self.transfer_threads
                )
            except BaseException:
                arena.close()
                raise
        return self._cpu_worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> CPUOffloadingWorker:
        """vLLM's worker, over memory that the tiers reach as well.

        vLLM's own would take the region's name away as soon as every rank has mapped it. The scheduler's side, which opens
        it by that name afterwards, would get another region, and the tiers bytes that no rank ever wrote.
        """
        if not self._tiers or self.num_chunks == 0:
            return super().create_worker(kv_caches)
        rank = 0 if self.replicated_layout else self.config.parallel.rank
        geometry = (self.num_chunks, self.kv_bytes_per_chunk, rank, self.cpu_page_size_per_worker)
        region = open_rank_region(self.config.engine_id, *geometry)
        try:
            return CPUOffloadingWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, mmap_region=region)
        except BaseException:
            region.cleanup()
            raise

    def open_arena(self, member: str) -> Arena:
        """The engine's host memory on the CPU platform, shared by all who open it; each `member` may do so once."""
        return Arena(self.config.engine_id, self.num_chunks, self.kv_bytes_per_chunk, member)


def _close(host: Arena | SharedRegion) -> None:
    """Let go of host memory. If somebody still holds a view, be it a traceback, it goes with the last of these."""
    with suppress(BufferError):
        host.close()


def _read(config: OffloadingConfig) -> dict[str, Any]:
    given = config.extra_config
    problems = [*_model_problem(given), *_nodes_problem(given)]
    settings = read_spec(given, problems)
    size = settings[HOST.name]
    if size is not None:
        problems += _too_small(config, size)
    if problems:
        raise ConfigError([f"kv_connector_extra_config: {problem}" for problem in problems])
    return settings


def _model_problem(given: Mapping[str, Any]) -> list[str]:
    engine = engine_config()
    if not current_platform.is_cpu() or engine is None or not engine.model_config.use_mla:
        return []
    return [
        f"spec_name: {given.get('spec_name')!r} cannot serve {engine.model_config.model} on the CPU platform: vLLM "
        "caches no prefixes of latent attention there, and goes on wrongly from what is loaded; serve it without offloading"
    ]


def _nodes_problem(given: Mapping[str, Any]) -> list[str]:
    engine = engine_config() if given.get("tiers") else None
    nodes = engine.parallel_config.nnodes_within_dp if engine is not None else 1
    if nodes == 1:
        return []
    return [
        f"tiers: are not possible with ranks on {nodes} machines: tiers are read and written by the scheduler, which "
        "reaches the host memory of its own machine only; leave them out, or run one engine a machine"
    ]


def _too_small(config: OffloadingConfig, size: int) -> list[str]:
    cell = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
    alignment = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
    chunk = -(-cell * config.parallel.world_size // alignment) * alignment
    if size >= chunk:
        return []
    return [
        f"cpu_bytes_to_use: {size} bytes hold no block; one takes {chunk} bytes "
        f"({config.cache.blocks_per_chunk} blocks on {config.parallel.world_size} ranks), so give at least "
        f"{chunk}, better the {format_size(1000 * chunk)} of a thousand"
    ]
