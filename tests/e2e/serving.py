"""Serving prompts on an engine, and what came of it."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvloft.telemetry import Stats
from kvloft.testing.models import VOCABULARY, TinyModel
from kvloft.vllm.engine import generate, manager_of, read_metric, run_engine

MODELS = {
    "llama": TinyModel("llama"),
    "mistral": TinyModel("mistral", window=96),
    "gemma3": TinyModel("gemma3", layers=6, window=96),
}
GPU_BLOCKS = {"llama": 12, "mistral": 12, "gemma3": 40}
"""So few that of four prompts of 200 tokens only the last stays in the engine's own cache."""


def text(seed: int, tokens: int) -> list[int]:
    """Tokens that look like nothing, the same each time."""
    dice = random.Random(seed)
    return [dice.randrange(VOCABULARY - 256, VOCABULARY) for _ in range(tokens)]


ROUNDS = [[text(seed, 200)] for seed in (0, 1, 2, 3, 0, 1, 2, 3, 0)]
"""Four prompts in turns: each has left the engine's cache when it comes again."""


class Served(NamedTuple):
    """What an engine answered, request by request, and what it says of itself."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    cached: list[int]
    host_tokens: float
    external_hits: float
    preemptions: float
    stats: Stats | None


Serve = Callable[..., Served]


def serve_batches(
    models: Mapping[str, Path],
    model: str,
    batches: Sequence[Sequence[Sequence[int]]],
    settings: Mapping[str, Any] | None = None,
    tokens: int = 6,
    blocks: int | None = None,
    between: Callable[[Any], None] | None = None,
    **options: Any,
) -> Served:
    if settings is not None:
        settings = {"cpu_bytes_to_use": "64MiB", **settings}
    options = {"max_model_len": 320, **options}
    outputs = []
    with run_engine(models[model], blocks or GPU_BLOCKS[model], settings, **options) as llm:
        for batch in batches:
            outputs += generate(llm, batch, tokens)
            if between is not None:
                between(llm)
        pool = getattr(manager_of(llm), "pool", None) if settings is not None else None
        answers = [output.outputs[0] for output in outputs]
        return Served(
            tokens=[list(answer.token_ids) for answer in answers],
            logprobs=[[next(iter(step.values())).logprob for step in answer.logprobs] for answer in answers],
            cached=[output.num_cached_tokens for output in outputs],
            host_tokens=read_metric(llm, "vllm:prompt_tokens_cached_by_source", source="host"),
            external_hits=read_metric(llm, "vllm:external_prefix_cache_hits"),
            preemptions=read_metric(llm, "vllm:num_preemptions"),
            stats=pool.stats() if pool is not None else None,
        )
