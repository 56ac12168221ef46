"""The side of `KvloftSpec` that moves bytes, on the CPU platform: engine memory <-> host arena.

A slot holds one chunk: for each rank a cell, in a cell for each tensor of the engine `blocks_per_chunk` pages:

    slot  = | rank 0 | rank 1 | ... | padding to whole pages of memory |
    cell  = | tensor 0: page, page, ... | tensor 1: page, page, ... | ... |

A chunk belongs to one KV-cache group. Groups of a hybrid model may overlay each other in the engine's tensors; each moves
the tensors that its own layers refer to.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvloft.errors import ConfigError, KvloftError
from kvloft.transfer import Arena, Mover, Shape, copy_pages
from kvloft.transfer.mover import Bytes, Offsets

_PATIENCE_SECONDS = 0.0002
"""How long an engine step waits for a load. An idle engine asks in a tight loop, which would starve the copying threads."""
_PART_BYTES = 16 << 20
"""A job is cut into parts of about this size, so that threads share it and urgent jobs need not wait for all of it."""


class TransferError(KvloftError):
    """A copy between the engine and host memory failed. The engine cannot go on: its blocks hold unknown bytes."""


class Layers(NamedTuple):
    """Tensors of one group whose pages are equal in size and equally spaced, in the engine as in the cell.

    Args:
        engine: all bytes of the allocation that they live in.
        engine_start: where the first tensor's block 0 begins.
        block_stride: from one block to the next, in the engine.
        layer_stride: from one tensor to the next, in the engine.
        tensors: how many.
        page: bytes to copy of each page.
        cell_start: where the first tensor begins in the cell.
        cell_page: from one page to the next, in the cell.
        cell_layer_stride: from one tensor to the next, in the cell.
    """

    engine: Bytes
    engine_start: int
    block_stride: int
    layer_stride: int
    tensors: int
    page: int
    cell_start: int
    cell_page: int
    cell_layer_stride: int


class KvloftWorker(OffloadingWorker):
    """Copies chunks between the engine's KV tensors, in main memory, and this rank's cells of a host arena.

    `submit_*` return at once; copies run on the mover's threads, loads before stores. A copy cannot fail as long as the
    ids it is given exist and the machine keeps the memory it promised; if one does, `get_finished` raises.

    Args:
        kv_caches: the engine's tensors, on the CPU.
        arena: host memory; closed with the worker.
        blocks_per_chunk: engine blocks in a chunk.
        cell: where in a slot this rank's bytes begin, and how many there are.
        threads: copying threads.

    Raises:
        ConfigError: the tensors are not on the CPU, or a chunk of them is larger than the cell.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, arena: Arena, blocks_per_chunk: int, cell: tuple[int, int], threads: int
    ) -> None:
        self._arena = arena
        self._blocks_per_chunk = blocks_per_chunk
        self._cell_start, room = cell
        need = sum(tensor.page_size_bytes for tensor in kv_caches.tensors) * blocks_per_chunk
        if need > room:
            raise ConfigError(f"a chunk of {blocks_per_chunk} blocks takes {need} bytes a rank, but its cell has {room}")
        self._groups = [list(_layers(kv_caches, group, blocks_per_chunk)) for group in range(len(kv_caches.group_data_refs))]
        self._mover = Mover(threads)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Start copying engine blocks into chunks."""
        self._submit(job_id, src_spec, dst_spec, store=True)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Start copying chunks into engine blocks."""
        self._submit(job_id, dst_spec, src_spec, store=False)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Jobs that have ended since the last call.

        Raises:
            TransferError: one of them failed. vLLM has no way on from there, so it gets the reason, not a flag.
        """
        results = []
        for moved in self._mover.poll(_PATIENCE_SECONDS):
            if moved.error is not None:
                raise TransferError(f"transfer {moved.job} failed: {moved.error}") from moved.error
            results.append(TransferResult(moved.job, True, moved.nbytes, moved.seconds))
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Block until these jobs have ended."""
        self._mover.wait(job_ids)

    def shutdown(self) -> None:
        """End all jobs, then let go of threads and memory. Idempotent."""
        self._mover.close()
        self._groups.clear()
        self._arena.close()

    def _submit(self, job: int, engine: LoadStoreSpec, host: LoadStoreSpec, store: bool) -> None:
        if not isinstance(engine, GPULoadStoreSpec) or not isinstance(host, BlockIDsLoadStoreSpec):
            raise TypeError(f"cannot move between {type(engine).__name__} and {type(host).__name__}")
        parts = []
        for layers, blocks, chunks, places in self._pieces(engine, host.block_ids):
            step = max(_PART_BYTES // (layers.tensors * layers.page), 1)
            for start in range(0, len(blocks), step):
                some = slice(start, start + step)
                parts.append(partial(self._copy, layers, blocks[some], chunks[some], places[some], store))
        self._mover.submit(job, parts, urgent=not store)

    def _pieces(
        self, engine: GPULoadStoreSpec, chunk_ids: NDArray[np.integer]
    ) -> Iterator[tuple[Layers, Offsets, Offsets, Offsets]]:
        """For each group's layers: engine blocks, the chunk of each, and its place in that chunk."""
        per_chunk = self._blocks_per_chunk
        if len(engine.group_sizes) != len(self._groups):
            raise ValueError(f"{len(engine.group_sizes)} groups in a transfer, {len(self._groups)} in the engine")
        block, chunk = 0, 0
        for layers, size, first in zip(self._groups, engine.group_sizes, engine.block_indices, strict=True):
            if not size:
                continue
            # The first block may sit in the middle of its chunk; so may the last.
            positions = first % per_chunk + np.arange(size)
            blocks = engine.block_ids[block : block + size].astype(np.int64)
            chunks = chunk_ids[chunk + positions // per_chunk].astype(np.int64)
            for same in layers:
                yield same, blocks, chunks, positions % per_chunk
            block += size
            chunk += int(positions[-1]) // per_chunk + 1
        if (block, chunk) != (len(engine.block_ids), len(chunk_ids)):
            raise ValueError(
                f"a transfer of {len(engine.block_ids)} blocks names {len(chunk_ids)} chunks instead of {chunk}"
            )

    def _copy(self, layers: Layers, blocks: Offsets, chunks: Offsets, places: Offsets, store: bool) -> int:
        arena = self._arena
        arena.reserve(chunks)
        inside = layers.engine_start + blocks * layers.block_stride
        outside = chunks * arena.slot_bytes + (self._cell_start + layers.cell_start) + places * layers.cell_page
        strides = (layers.layer_stride, layers.cell_layer_stride)
        if store:
            return copy_pages(arena.bytes, outside, layers.engine, inside, Shape(layers.tensors, layers.page, *strides))
        return copy_pages(layers.engine, inside, arena.bytes, outside, Shape(layers.tensors, layers.page, *strides[::-1]))


def _layers(kv_caches: CanonicalKVCaches, group: int, blocks_per_chunk: int) -> Iterator[Layers]:
    """Bundle the tensors that a group refers to: the fewer bundles, the fewer copies."""
    pages: dict[int, int] = defaultdict(int)
    for ref in kv_caches.group_data_refs[group]:
        pages[ref.tensor_idx] = max(pages[ref.tensor_idx], ref.page_size_bytes)
    sizes = [tensor.page_size_bytes * blocks_per_chunk for tensor in kv_caches.tensors]
    cells = np.cumsum([0, *sizes]).tolist()
    singles = []
    for index, page in sorted(pages.items()):
        tensor = kv_caches.tensors[index].tensor
        if tensor.device.type != "cpu":
            raise ConfigError(f"KV tensor {index} is on {tensor.device}; this worker serves the CPU platform only")
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy()
        itemsize = tensor.element_size()
        singles.append(
            Layers(
                engine=whole,
                engine_start=int(tensor.storage_offset()) * itemsize,
                block_stride=tensor.stride(0) * itemsize,
                layer_stride=0,
                tensors=1,
                page=page,
                cell_start=cells[index],
                cell_page=kv_caches.tensors[index].page_size_bytes,
                cell_layer_stride=0,
            )
        )
    yield from _bundle(singles)


def _bundle(singles: Sequence[Layers]) -> Iterator[Layers]:
    bundle: Layers | None = None
    for single in singles:
        if bundle is not None and _alike(bundle, single):
            gaps = (
                single.engine_start - bundle.engine_start - (bundle.tensors - 1) * bundle.layer_stride,
                single.cell_start - bundle.cell_start - (bundle.tensors - 1) * bundle.cell_layer_stride,
            )
            if bundle.tensors == 1 or gaps == (bundle.layer_stride, bundle.cell_layer_stride):
                bundle = bundle._replace(tensors=bundle.tensors + 1, layer_stride=gaps[0], cell_layer_stride=gaps[1])
                continue
        if bundle is not None:
            yield bundle
        bundle = single
    if bundle is not None:
        yield bundle


def _alike(one: Layers, other: Layers) -> bool:
    same_memory = one.engine.ctypes.data == other.engine.ctypes.data
    return same_memory and (one.page, one.cell_page, one.block_stride) == (other.page, other.cell_page, other.block_stride)
