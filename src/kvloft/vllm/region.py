"""Host memory that vLLM's own worker shares between processes, seen from the scheduler's side."""

import os
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


def open_rank_region(engine_id: str, slots: int, slot_bytes: int, rank: int, rank_bytes: int) -> SharedOffloadRegion:
    """One rank's side of a region that a `SharedRegion` opens, too: that one takes its name away."""
    region = SharedOffloadRegion(
        engine_id=engine_id, num_chunks=slots, rank=rank, kv_bytes_per_chunk=slot_bytes, cpu_page_size=rank_bytes
    )
    # vLLM's creator would, at the end; after a crash the name would stay, and with it the memory.
    region._creator = False
    return region


class SharedRegion:
    """The slots of vLLM's `SharedOffloadRegion`, as `Arena` gives those of kvloft's.

    Its name in /dev/shm has to stay until every rank has opened it; then `hide` it.

    Args:
        engine_id: names the region.
        slots: how many.
        slot_bytes: of one block of all ranks, padding included.
        rank_bytes: of one rank's part.
    """

    def __init__(self, engine_id: str, slots: int, slot_bytes: int, rank_bytes: int) -> None:
        self._region = SharedOffloadRegion(
            engine_id=engine_id, num_chunks=slots, rank=None, kv_bytes_per_chunk=slot_bytes, cpu_page_size=rank_bytes
        )
        self._rows = np.asarray(self._region.create_kv_memoryview()).view(np.uint8)
        self.slot_bytes = int(self._rows.shape[1])

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of it, in slot order."""
        return self._rows.reshape(-1)

    def view(self, slot: int) -> memoryview:
        """One slot's bytes: writable, contiguous, format "B". Valid until `close`."""
        return memoryview(self._rows[slot])

    def hide(self) -> None:
        """Take the name away: the memory is gone with the last process that has mapped it, however that ends."""
        self._region._creator = False
        with suppress(FileNotFoundError):
            os.unlink(self._region.mmap_path)

    def close(self) -> None:
        """Let go of the memory, and of its name."""
        self.hide()
        self._rows = np.empty((0, 0), np.uint8)
        self._region.cleanup()
