"""Specs for tests, named in vLLM's configuration as `engine_specs`: what goes wrong if kvloft did, and the stock manager."""

import hashlib
from typing import Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import OffloadingManager
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvloft.vllm.spec import KvloftSpec
from kvloft.vllm.worker import KvloftWorker, Layers


class StockManagerSpec(KvloftSpec):
    """vLLM's own manager, policies included, before kvloft's worker."""

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            self._manager = CPUOffloadingManager(
                num_chunks=self.num_chunks,
                cache_policy=self.eviction_policy,
                cache_policy_module_path=self.cache_policy_module_path,
            )
        return self._manager


def engine_pages(layers: Layers, block: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of one block in all of these tensors, as a writable view of the engine's memory."""
    strides = (layers.layer_stride, 1)
    offset = layers.engine_start + block * layers.block_stride
    return np.ndarray((layers.tensors, layers.page), np.uint8, layers.engine, offset, strides)


class ZeroedWorker(KvloftWorker):
    """Loads zeros."""

    def _copy(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        nbytes = super()._copy(layers, blocks, chunks, places, store)
        if not store:
            for block in blocks.tolist():
                engine_pages(layers, block)[:] = 0
        return nbytes


class OneLayerWorker(KvloftWorker):
    """Loads all but one layer."""

    def _copy(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        kept = {} if store else {block: engine_pages(layers, block)[-1].copy() for block in blocks.tolist()}
        nbytes = super()._copy(layers, blocks, chunks, places, store)
        for block, page in kept.items():
            engine_pages(layers, block)[-1] = page
        return nbytes


class OtherBlockWorker(KvloftWorker):
    """Loads the block of another prompt."""

    def _copy(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        return super()._copy(layers, blocks, chunks if store else (chunks + 6) % 24, places, store)


class CheckedWorker(KvloftWorker):
    """Remembers every block as it was when it was stored, and compares what is loaded, byte for byte."""

    stored: ClassVar[dict[tuple[int, int, int], bytes]] = {}
    loads: ClassVar[list[bool]] = []
    """For each page loaded, whether it was the one stored."""
    unaligned: ClassVar[list[bool]] = []
    """For each load, whether it began inside a chunk."""

    def _copy(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        nbytes = self._transfer(layers, blocks, chunks, places, store)
        for block, chunk, place in zip(blocks.tolist(), chunks.tolist(), places.tolist(), strict=True):
            digest = hashlib.sha256(engine_pages(layers, block).tobytes()).digest()
            if store:
                self.stored[layers.cell_start, chunk, place] = digest
            else:
                self.loads.append(self.stored[layers.cell_start, chunk, place] == digest)
        if not store:
            self.unaligned.append(int(places[0]) > 0)
        return nbytes

    def _transfer(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        return super()._copy(layers, blocks, chunks, places, store)


class PermutedWorker(CheckedWorker):
    """Loads the right blocks of the right prompt in the wrong order."""

    def _transfer(self, layers: Layers, blocks: Any, chunks: Any, places: Any, store: bool) -> int:
        return super()._transfer(layers, blocks, chunks if store else chunks[::-1], places if store else places[::-1], store)


class ZeroedSpec(KvloftSpec):
    worker_class = ZeroedWorker


class OneLayerSpec(KvloftSpec):
    worker_class = OneLayerWorker


class OtherBlockSpec(KvloftSpec):
    worker_class = OtherBlockWorker


class CheckedSpec(KvloftSpec):
    worker_class = CheckedWorker


class PermutedSpec(KvloftSpec):
    worker_class = PermutedWorker
