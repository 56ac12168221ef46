"""Bytes of KV cache as computed from a config, beside what a real engine lays out for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvloft.geometry import KVGeometry
from kvloft.vllm.engine import BLOCK_TOKENS, manager_of, run_engine

pytestmark = pytest.mark.xdist_group("engine")

COMMON = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "torch_dtype": "float32",
}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window": 64,
    "query_pre_attn_scalar": 32,
}
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 2,
}


def alternating(every: int, layers: int) -> dict[str, Any]:
    """Layers with a sliding window, but for each so-many-th."""
    kinds = ["full_attention" if layer % every == every - 1 else "sliding_attention" for layer in range(layers)]
    return {"num_hidden_layers": layers, "layer_types": kinds}


CONFIGS = {
    "grouped": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3},
    "one KV head": QWEN2 | {"num_key_value_heads": 1},
    "pages not whole": QWEN2 | {"num_hidden_layers": 1, "num_key_value_heads": 1, "hidden_size": 320, "head_dim": 80}
    | {"torch_dtype": "bfloat16"},
    "all windowed": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64},
    "groups padded": GEMMA3 | alternating(3, 7),
    "groups nearly even": GEMMA3 | alternating(2, 9),
    "latent": DEEPSEEK,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_as_a_real_engine_lays_it_out(name: str, tmp_path: Path) -> None:
    config = COMMON | CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    geometry = KVGeometry.from_config(tmp_path)
    # kvloft refuses latent attention on the CPU platform.
    settings = None if name == "latent" else {"cpu_bytes_to_use": "8MiB", "blocks_per_chunk": 3}
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 256, "dtype": config["torch_dtype"]}
    with run_engine(tmp_path, 40, settings, **options) as llm:
        laid_out = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
        groups = laid_out.kv_cache_groups
        for group in groups:
            assert group.kv_cache_spec.page_size_bytes == geometry.layer_bytes * group.kv_cache_spec.block_size
        windows = [getattr(group.kv_cache_spec, "sliding_window", None) for group in groups]
        assert sorted(map(str, windows)) == sorted(str(group.window) for group in geometry.groups)
        assert max(len(group.layer_names) for group in groups) == geometry.layers
        tokens = groups[0].kv_cache_spec.block_size
        # All tensors lie in one piece of memory, and each tells the size of all of it.
        assert {tensor.size for tensor in laid_out.kv_cache_tensors} == {geometry.block_bytes(tokens) * laid_out.num_blocks}
        if settings:
            assert manager_of(llm).pool.capacity == (8 << 20) // geometry.slot_bytes(3 * BLOCK_TOKENS)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_ranks_have_as_many_heads_as_vllm_gives_them(kv_heads: int, tp: int, tmp_path: Path) -> None:
    """Without an engine of eight ranks: what vLLM's own configuration says of one."""
    from vllm.config import ModelConfig, ParallelConfig

    config = COMMON | QWEN2 | {"num_attention_heads": 8, "hidden_size": 256, "num_key_value_heads": kv_heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, dtype="float32")
    parallel = ParallelConfig(tensor_parallel_size=tp, distributed_executor_backend="mp")
    heads, width = model.get_num_kv_heads(parallel), model.get_head_size()
    assert KVGeometry.from_config(tmp_path, tp=tp).layer_bytes == 2 * heads * width * 4
