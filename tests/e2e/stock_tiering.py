"""vLLM's own tiering on the CPU platform: its spec and manager, with kvloft's worker over its shared region."""

from typing import Any

import numpy as np
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvloft.vllm.worker import KvloftWorker


class RegionArena:
    """What the worker asks of an arena, from vLLM's region."""

    def __init__(self, spec: TieringOffloadingSpec) -> None:
        self.slots, self.slot_bytes = spec.num_chunks, spec.kv_bytes_per_chunk
        self._region = SharedOffloadRegion(
            engine_id=spec.config.engine_id,
            num_chunks=spec.num_chunks,
            rank=0,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk,
            cpu_page_size=spec.cpu_page_size_per_worker,
        )
        self.bytes = np.asarray(self._region.create_kv_memoryview()).view(np.uint8).reshape(-1)

    def reserve(self, slots: Any) -> None:
        """vLLM has done so."""

    def close(self) -> None:
        self.bytes = np.empty(0, np.uint8)
        self._region.cleanup()


class StockTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> Any:
        if self._worker is None:
            cell = self.cpu_page_size_per_worker
            self._worker = KvloftWorker(kv_caches, RegionArena(self), self.blocks_per_chunk, (0, cell), 2)
        return self._worker
