"""Time to the first token of a long prompt on a real engine: computed, loaded from host memory, loaded from disk.

The model has random weights, so any shape runs without downloads; on a GPU the shape is that of an 8B model, on the CPU a
tiny one, for the benchmark's own code. Every prompt runs after others of its length have warmed the engine, and once more
after they have pushed it out of the engine's own memory; a second engine finds it on disk alone. `--short` takes the
tiny shape everywhere; `--json FILE` writes the figures.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvloft.vllm.engine import BLOCK_TOKENS, generate, manager_of, run_engine, set_environment

TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
EIGHT_B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
STOCK = {"spec_name": "CPUOffloadingSpec", "spec_module_path": None}


def save_config(shape: Mapping[str, int], longest: int, folder: Path) -> Path:
    """A model directory that holds a configuration and no weights."""
    from transformers import LlamaConfig

    config = LlamaConfig(**shape, max_position_embeddings=longest, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    config.save_pretrained(folder)
    return folder


def prompt(seed: int, tokens: int, vocabulary: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(vocabulary) for _ in range(tokens)]


def first_token(llm: Any, tokens: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many of the prompt's were not computed."""
    start = time.perf_counter()
    (output,) = generate(llm, [tokens], 1)
    return time.perf_counter() - start, output.num_cached_tokens


def settle(llm: Any, seconds: float = 120) -> None:
    """Stores that are on their way arrive."""
    until = time.monotonic() + seconds
    while manager_of(llm).has_pending_work() and time.monotonic() < until:
        llm.llm_engine.step()


def measure(model: Path, shape: Mapping[str, int], tokens: int, settings: Mapping[str, Any], rounds: int) -> Iterator[Any]:
    """Pairs of what was measured and (seconds, cached tokens), medians over the rounds."""
    blocks = tokens // BLOCK_TOKENS + 4
    head = shape["hidden_size"] // shape["num_attention_heads"]
    kv_bytes = 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head
    options = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_num_batched_tokens": min(tokens, 8192),
        "kv_cache_memory_bytes": 2 * blocks * BLOCK_TOKENS * kv_bytes,
    }
    host = (2 + rounds) * blocks * BLOCK_TOKENS * kv_bytes
    texts = [prompt(seed, tokens, shape["vocab_size"]) for seed in range(1 + rounds)]
    tiered = "tiers" in settings
    with run_engine(model, blocks, {"cpu_bytes_to_use": host, **settings}, **options) as llm:
        computed = [first_token(llm, text) for text in texts][1:]
        loaded = [first_token(llm, text) for text in texts][:-1]
        if tiered:
            settle(llm)
    yield "computed", middle(computed)
    yield "host", middle(loaded)
    if tiered:
        with run_engine(model, blocks, {"cpu_bytes_to_use": host, **settings}, **options) as llm:
            first_token(llm, prompt(-1, tokens, shape["vocab_size"]))
            yield "disk", middle([first_token(llm, text) for text in texts][:-1])


def middle(runs: list[tuple[float, int]]) -> tuple[float, int]:
    return statistics.median(seconds for seconds, _ in runs), min(cached for _, cached in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="the tiny model, one round")
    parser.add_argument("--disk", type=Path, help="directory of the disk tier; a temporary one if not given")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    set_environment()
    from vllm.platforms import current_platform

    gpu = not current_platform.is_cpu()
    full = gpu and not args.short
    shape, lengths, rounds = (EIGHT_B, (8192, 32768), 3) if full else (TINY, (1024,), 1)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        model = save_config(shape, max(lengths) + 8 * BLOCK_TOKENS, Path(scratch) / "model")
        for tokens in lengths:
            place = (args.disk or Path(scratch)) / f"kv-{tokens}"
            disk = {"type": "disk", "path": str(place), "capacity": "100GiB", "namespace": "random weights"}
            cascade = {"prefill_tokens_per_second": 1.0, "pending_seconds": 60}
            runs = {"kvloft": {"tiers": [disk], "cascade": cascade}}
            if gpu:
                runs["stock"] = STOCK
            for name, settings in runs.items():
                for source, (seconds, cached) in measure(model, shape, tokens, settings, rounds):
                    rows.append({"who": name, "tokens": tokens, "from": source, "seconds": seconds, "cached": cached})
    table = Table(title=f"time to first token, {current_platform.device_name or 'CPU'}", title_justify="left")
    for header in ("who", "prompt", "from", "ms", "cached tokens", "times quicker"):
        table.add_column(header, justify="left" if header in ("who", "from") else "right")
    computed = {(row["who"], row["tokens"]): row["seconds"] for row in rows if row["from"] == "computed"}
    for row in rows:
        row["quicker"] = computed[row["who"], row["tokens"]] / row["seconds"]
        figures = (f"{1e3 * row['seconds']:.0f}", f"{row['cached']:,}", f"{row['quicker']:.1f}")
        table.add_row(row["who"], f"{row['tokens']:,}", row["from"], *figures)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "shape": shape}, indent=2) + "\n")


if __name__ == "__main__":
    main()
