"""What a live engine is asked is recorded, and replays to the hits that it had."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from serving import GPU_BLOCKS, text

from kvloft.sim.replay import Replay
from kvloft.traces.formats import open_trace
from kvloft.vllm.engine import BLOCK_TOKENS, generate, manager_of, run_engine

BLOCKS = 24


def conversations() -> list[list[int]]:
    """Prompts in random order, some the beginnings of others. None ends with a whole block: vLLM would not load it."""
    dice = random.Random(7)
    return [text(dice.randrange(6), dice.choice([75, 110, 140, 200])) for _ in range(40)]


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize(
    ("spec", "policy", "name"),
    [
        ("KvloftSpec", "lru", "lru"),
        ("KvloftSpec", "arc", "arc"),
        ("StockManagerSpec", "ARC?record={record}", "arc"),
    ],
)
def test_a_recording_replays_to_the_same_hits(models: dict[str, Path], tmp_path: Path, spec, policy, name):
    record = tmp_path / "trace.jsonl.zst"
    stock = spec == "StockManagerSpec"
    settings = {
        "spec_name": spec,
        "spec_module_path": "engine_specs" if stock else "kvloft.vllm",
        "eviction_policy": policy.format(record=record),
        **({"cache_policy_module_path": "kvloft.vllm"} if stock else {"record": str(record)}),
    }
    with run_engine(
        models["llama"], GPU_BLOCKS["llama"], {"cpu_bytes_to_use": "1MiB", **settings}, max_model_len=320
    ) as llm:
        block_bytes = (1 << 20) // manager_of(llm)._num_chunks if stock else (1 << 20) // manager_of(llm).pool.capacity
    settings["cpu_bytes_to_use"] = BLOCKS * block_bytes
    for part in tmp_path.iterdir():
        part.unlink()
    prompts = conversations()
    with run_engine(models["llama"], GPU_BLOCKS["llama"], settings, max_model_len=320) as llm:
        for prompt in prompts:
            # What the engine's own cache serves, kvloft is not asked for.
            llm.reset_prefix_cache()
            generate(llm, [prompt], 2)
            # vLLM tells of a request's end in the next step: let there be one before the next request.
            generate(llm, [text(0, 5)], 1)
        manager = manager_of(llm)
        if stock:
            manager._policy._recording.close()
        else:
            served = manager.pool.counters.hits
            manager.shutdown()
    trace = open_trace(record)
    requests = list(trace)
    assert len(requests) == len(prompts)
    assert trace.block_tokens == BLOCK_TOKENS
    assert [len(request.keys) for request in requests] == [len(prompt) // BLOCK_TOKENS for prompt in prompts]
    assert all(later.time >= earlier.time for earlier, later in pairwise(requests))
    replay = Replay(name, BLOCKS)
    assert [replay.step(request) for request in requests] == [request.hits for request in requests]
    assert replay.hits > 10 and replay.evicted > 10
    if not stock:
        assert replay.hits == served


@pytest.mark.xdist_group("engine")
def test_a_recording_knows_no_tokens_and_no_hashes(models, tmp_path):
    """Two recordings of the same prompts have no key in common."""
    seen = []
    for name in ("a", "b"):
        record = tmp_path / f"{name}.jsonl"
        settings = {"cpu_bytes_to_use": "1MiB", "record": str(record)}
        with run_engine(models["llama"], GPU_BLOCKS["llama"], settings, max_model_len=320) as llm:
            generate(llm, [text(1, 100)], 1)
            manager_of(llm).shutdown()
        assert record.stat().st_mode & 0o777 == 0o600
        seen.append({key for request in open_trace(record) for key in request.keys})
    assert len(seen[0]) == len(seen[1]) == 3 and not seen[0] & seen[1]
