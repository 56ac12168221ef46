"""What vLLM gives its offloading specs, for a model of one group of layers."""

import os
from collections.abc import Mapping
from typing import Any

from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)


def offloading_config(
    extra: Mapping[str, Any],
    block_bytes: int,
    *,
    block_tokens: int = 32,
    blocks_per_chunk: int = 1,
    ranks: int = 1,
    events: bool = False,
    engine: str = f"engine-{os.getpid()}",
) -> OffloadingConfig:
    """As the side of the first rank or of the scheduler gets it.

    Args:
        extra: `kv_connector_extra_config`.
        block_bytes: of one rank's part of one of the engine's blocks.
        block_tokens: in one of these.
        blocks_per_chunk: how many of them make one of kvloft's.
        ranks: all of them tensor parallel.
        events: whether the engine publishes KV events.
        engine: its id. Engines that hold host memory at the same time need different ones.
    """
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(block_tokens, ("layer",), 0),),
        worker_kv_bytes_per_block=block_bytes,
        enable_kv_cache_events=events,
        extra_config=extra,
        engine_id=engine,
        model=OffloadingModelConfig("model", "float32"),
        cache=OffloadingCacheConfig(block_tokens, blocks_per_chunk),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=ranks,
            tp_size=ranks,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    )
