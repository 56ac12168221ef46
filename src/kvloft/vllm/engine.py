"""A real vLLM engine in this process, with or without kvloft. It needs `pip install 'kvloft[vllm]'`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvloft.errors import MissingExtra

BLOCK_TOKENS = 32
"""Tokens in an engine block: the least that vLLM's attention for the CPU takes."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # More threads than one make a step of a tiny model many times slower.
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def set_environment(verbose: bool = False) -> None:
    """Settings that torch and vLLM read when they are imported: one process, one thread, nothing sent anywhere.

    Raises:
        MissingExtra: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise MissingExtra("vllm", "running an engine")
    os.environ.update(_ENVIRONMENT)
    os.environ["VLLM_LOGGING_LEVEL"] = "INFO" if verbose else "ERROR"
    os.environ["TORCH_CPP_LOG_LEVEL"] = "INFO" if verbose else "ERROR"


@contextmanager
def run_engine(model: Path, blocks: int, settings: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """A `vllm.LLM` that is shut down at the end. Call `set_environment` before anything imports torch.

    Args:
        model: a directory, as made by `kvloft.testing.models`.
        blocks: the engine's own KV cache, in blocks of `BLOCK_TOKENS`; the longest request must fit, with one to spare.
        settings: `kv_connector_extra_config`; None runs without offloading. `KvloftSpec` is filled in if no spec is named.
        options: further arguments of `vllm.LLM`.
    """
    from vllm import LLM
    from vllm.config import KVTransferConfig

    if settings is not None:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"spec_name": "KvloftSpec", "spec_module_path": "kvloft.vllm", **settings},
        )
    options = {
        "dtype": "float32",
        "block_size": BLOCK_TOKENS,
        "max_model_len": (blocks - 1) * BLOCK_TOKENS,
        "max_num_seqs": 8,
        "seed": 0,
        "distributed_executor_backend": "uni",
        "kv_cache_memory_bytes": 64 << 20,
        **options,
    }
    llm = LLM(
        model=str(model),
        num_gpu_blocks_override=blocks,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
        **options,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def generate(llm: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[Any]:
    """Serve prompts side by side; the likeliest `tokens` tokens of each, with their log-probabilities."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=0)
    outputs: list[Any] = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling, use_tqdm=False)
    return outputs


def read_metric(llm: Any, name: str, **labels: str) -> float:
    """Sum of a counter or gauge of the engine over all label sets that contain `labels`; 0 if there is none."""
    return sum(
        float(metric.value)
        for metric in llm.get_metrics()
        if metric.name == name and hasattr(metric, "value") and labels.items() <= metric.labels.items()
    )


def manager_of(llm: Any) -> Any:
    """The offloading manager of an engine that runs in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler.connector.connector_scheduler.manager
