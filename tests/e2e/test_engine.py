"""kvloft in a real vLLM engine: prompts come back from host memory, and the tokens are those of a run without it."""

from collections.abc import Iterator
from typing import Any

import pytest
from serving import MODELS, ROUNDS, Serve, Served, text

pytestmark = pytest.mark.xdist_group("engine")

POLICIES = ("lru", "arc")
ROUND_HITS = [0] * 4 + [192] * 5
"""Six blocks of 32 tokens of each prompt that comes again; the last, partial one is computed."""


def same(served: Served, expected: Served) -> None:
    assert served.tokens == expected.tokens
    for ours, theirs in zip(served.logprobs, expected.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)


def corrupted(name: str) -> dict[str, Any]:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("reaches into kvloft's own worker, which runs on the CPU platform")
    return {"spec_name": name, "spec_module_path": "engine_specs"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", MODELS)
def test_prompts_come_back_with_the_same_tokens(serve: Serve, baseline: Serve, model: str, policy: str) -> None:
    expected = baseline(model, ROUNDS)
    assert expected.cached == [0] * 9, "without offloading nothing may be cached, or this test proves nothing"
    served = serve(model, ROUNDS, {"eviction_policy": policy})
    same(served, expected)
    assert served.cached == ROUND_HITS
    assert served.external_hits == sum(ROUND_HITS)
    # Of a sliding window only its tail is loaded; vLLM counts by source what was loaded.
    assert served.host_tokens == (5 * 96 if model == "mistral" else sum(ROUND_HITS))
    assert served.stats is not None
    assert served.stats.counters.loaded == served.stats.counters.hits > 0
    assert served.stats.counters.late == served.stats.counters.failed == served.stats.pinned == 0


@pytest.mark.parametrize("fault", ["ZeroedSpec", "OneLayerSpec", "OtherBlockSpec"])
@pytest.mark.parametrize("model", MODELS)
def test_corrupted_loads_change_the_tokens(serve: Serve, baseline: Serve, model: str, fault: str) -> None:
    expected = baseline(model, ROUNDS)
    served = serve(model, ROUNDS, corrupted(fault))
    assert served.cached == ROUND_HITS
    assert served.tokens[:4] == expected.tokens[:4]
    for request in range(4, 9):
        assert served.tokens[request] != expected.tokens[request]


@pytest.fixture
def checked() -> Iterator[Any]:
    from engine_specs import CheckedWorker

    for record in (CheckedWorker.stored, CheckedWorker.loads, CheckedWorker.unaligned):
        record.clear()
    yield CheckedWorker


@pytest.mark.parametrize("model", MODELS)
def test_every_block_comes_back_byte_for_byte(serve: Serve, checked: Any, model: str) -> None:
    serve(model, ROUNDS, corrupted("CheckedSpec"))
    assert len(checked.loads) >= 5 * 2
    assert all(checked.loads)


@pytest.mark.parametrize("model", MODELS)
def test_permuted_blocks_are_seen_in_the_bytes(serve: Serve, checked: Any, model: str) -> None:
    serve(model, ROUNDS, corrupted("PermutedSpec"))
    assert not all(checked.loads)


@pytest.mark.parametrize("per_chunk", [2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_several_blocks_per_chunk(serve: Serve, baseline: Serve, checked: Any, model: str, per_chunk: int) -> None:
    """Of a prompt that comes again the engine still has the first block, so the load begins inside a chunk."""
    again, other = text(8, 292), text(9, 292)
    batches = [[again], [other], [again], [other], [again]]
    expected = baseline(model, batches)
    served = serve(model, batches, {**corrupted("CheckedSpec"), "blocks_per_chunk": per_chunk})
    same(served, expected)
    assert served.host_tokens > 0
    assert all(checked.loads)
    if model == "llama" or per_chunk != 3:
        # A window of three blocks begins where a chunk of three does.
        assert any(checked.unaligned)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", MODELS)
def test_tight_memory(serve: Serve, baseline: Serve, model: str, policy: str) -> None:
    """Host memory for less than two prompts, four at once, some twice: blocks leave, stores are refused, tokens stay."""
    batches = [[text(seed, 200) for seed in batch] for batch in ((0, 1, 2, 3), (0, 1), (4, 0), (1, 4), (0, 0), (5, 0))]
    expected = baseline(model, batches)
    slots = {"llama": 10, "mistral": 10, "gemma3": 30}[model]
    chunk = _chunk_bytes(model)
    served = serve(model, batches, {"eviction_policy": policy, "cpu_bytes_to_use": slots * chunk})
    assert served.tokens == expected.tokens
    stats = served.stats
    assert stats is not None
    assert stats.capacity == slots
    assert sum(stats.evicted.values()) > 0
    assert stats.free + stats.writing + stats.ready == slots
    assert stats.pinned == 0


def _chunk_bytes(model: str) -> int:
    tiny = MODELS[model]
    layers = tiny.layers // 3 if tiny.kind == "gemma3" else tiny.layers
    heads = tiny.hidden // 32 // 2
    return 2 * layers * 32 * heads * 32 * 4


@pytest.mark.parametrize("policy", POLICIES)
def test_chunked_prefill(serve: Serve, baseline: Serve, policy: str) -> None:
    """A step takes 48 tokens, so a prompt takes five, and several are under way at once."""
    batches = [[text(seed, 230) for seed in batch] for batch in ((0, 1, 2), (3, 4, 5), (0, 1, 2), (5, 0))]
    options = {"max_num_batched_tokens": 48, "max_num_seqs": 4}
    expected = baseline("llama", batches, **options)
    served = serve("llama", batches, {"eviction_policy": policy}, **options)
    same(served, expected)
    assert served.host_tokens >= 4 * 192


@pytest.mark.parametrize("policy", POLICIES)
def test_preemption(serve: Serve, baseline: Serve, policy: str) -> None:
    """Four requests grow until the engine's cache cannot hold them all: some are thrown out and come back later."""
    batches = [[text(seed, 90) for seed in (0, 1, 2, 3)], [text(seed, 90) for seed in (3, 2, 1, 0)]]
    options = {"tokens": 80, "blocks": 12}
    expected = baseline("llama", batches, **options)
    served = serve("llama", batches, {"eviction_policy": policy, "offload_prompt_only": False}, **options)
    assert served.preemptions > 0
    assert served.tokens == expected.tokens
    assert served.host_tokens > 0


def test_answers_come_back_too(serve: Serve, baseline: Serve) -> None:
    """With `offload_prompt_only` off, what a request generated is loaded as part of the next prompt."""
    first = text(0, 200)
    answer = baseline("llama", [[first]], tokens=80).tokens[0]
    batches = [[first], [text(1, 250)], [text(2, 250)], [[*first, *answer]]]
    expected = baseline("llama", batches, tokens=80, max_model_len=384, blocks=14)
    served = serve("llama", batches, {"offload_prompt_only": False}, tokens=80, max_model_len=384, blocks=14)
    same(served, expected)
    assert served.cached[-1] == 256


def test_reset_forgets_everything(serve: Serve, baseline: Serve) -> None:
    def reset(llm: Any) -> None:
        assert llm.reset_prefix_cache(reset_connector=True)

    served = serve("llama", ROUNDS, {}, between=reset)
    same(served, baseline("llama", ROUNDS))
    assert served.cached == [0] * 9
    assert served.stats is not None
    assert served.stats.ready == 0
    assert served.stats.generation == 9


@pytest.mark.parametrize(
    "policy",
    [
        {"eviction_policy": "lru"},
        {"eviction_policy": "arc"},
        {"eviction_policy": "LRU", "cache_policy_module_path": "kvloft.vllm"},
        {"eviction_policy": "ARC", "cache_policy_module_path": "kvloft.vllm"},
        {"eviction_policy": "ARCvLLM", "cache_policy_module_path": "kvloft.vllm"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_stock_manager_before_our_worker(serve: Serve, baseline: Serve, policy: dict[str, str]) -> None:
    """vLLM's own manager, with its policies and with ours, gets the same out of the worker as kvloft's manager."""
    served = serve("llama", ROUNDS, {**corrupted("StockManagerSpec"), **policy})
    same(served, baseline("llama", ROUNDS))
    assert served.cached == ROUND_HITS


def test_metrics_reach_prometheus(serve: Serve) -> None:
    from kvloft.vllm.engine import read_metric

    seen: dict[str, float] = {}

    def read(llm: Any) -> None:
        for name in ("hits", "misses", "stored", "loaded", "evicted", "blocks", "capacity_blocks"):
            seen[name] = read_metric(llm, f"vllm:kvloft_{name}")
        for state in ("free", "ready", "writing"):
            seen[state] = read_metric(llm, "vllm:kvloft_blocks", state=state)

    served = serve("llama", [*ROUNDS, ROUNDS[1]], {"cpu_bytes_to_use": 12 * _chunk_bytes("llama")}, between=read)
    stats = served.stats
    assert stats is not None
    assert seen["capacity_blocks"] == 12 == seen["free"] + seen["ready"] + seen["writing"]
    assert 0 < seen["evicted"] <= sum(stats.evicted.values())
    assert 0 < seen["stored"] <= stats.counters.stored
    assert 0 < seen["misses"] <= stats.counters.misses
