"""Bytes of KV cache from model configs; expected values worked out by hand from the models' published configs."""

import json

import pytest

from kvloft.errors import ConfigError
from kvloft.geometry import KVGeometry, LayerGroup

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
GEMMA3_27B = {
    "text_config": {
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_size": 5376,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "torch_dtype": "bfloat16",
}


def test_grouped_query_attention():
    geometry = KVGeometry.from_config(LLAMA_8B)
    assert geometry.bytes_per_token() == 2 * 32 * 8 * 128 * 2 == 131072
    assert geometry.block_bytes(16) == geometry.slot_bytes(16) == 2 * 1024 * 1024


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_tensor_parallelism_splits_heads_and_then_replicates_them(tp, heads):
    geometry = KVGeometry.from_config(LLAMA_8B, tp=tp)
    assert geometry.block_bytes(16) == 2 * 32 * heads * 128 * 2 * 16
    assert geometry.slot_bytes(16) == tp * geometry.block_bytes(16)


def test_multi_query_and_kv_dtype():
    falcon = {"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}
    assert KVGeometry.from_config(falcon).block_bytes(1) == 2 * 32 * 64 * 2
    assert KVGeometry.from_config(falcon, kv_dtype="fp8").block_bytes(1) == 2 * 32 * 64


def test_latent_attention_is_replicated():
    geometry = KVGeometry.from_config(DEEPSEEK_V3, tp=8)
    assert geometry.block_bytes(64) == 576 * 2 * 61 * 64
    assert geometry.slot_bytes(64) == 576 * 2 * 61 * 64
    assert KVGeometry.from_config(DEEPSEEK_V3, kv_dtype="fp8_ds_mla").block_bytes(64) == 656 * 61 * 64


def test_layers_of_hybrid_models_are_grouped():
    geometry = KVGeometry.from_config(GEMMA3_27B)
    assert sorted(geometry.groups, key=lambda group: group.window or 0) == [LayerGroup(10)] + 6 * [LayerGroup(10, 1024)]
    assert geometry.block_bytes(16) == 2 * 16 * 128 * 2 * 10 * 16


def test_slots_are_whole_pages():
    tiny = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 30, "dtype": "float16"}
    geometry = KVGeometry.from_config(tiny)
    assert geometry.block_bytes(16) == 2 * 2 * 30 * 2 * 2 * 16 == 7680
    assert geometry.slot_bytes(16) == 8192


def test_a_file_or_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert KVGeometry.from_config(tmp_path) == KVGeometry.from_config(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="give a Hugging Face"):
        KVGeometry.from_config(tmp_path / "absent.json")


def test_layers_of_other_kinds_are_not_guessed():
    config = LLAMA_8B | {"layer_types": ["linear_attention", "full_attention"] * 16}
    with pytest.raises(
        ConfigError, match="layer_types has 'linear_attention'; sizes are known of full and sliding attention"
    ):
        KVGeometry.from_config(config)


def test_all_faults_at_once():
    with pytest.raises(ConfigError) as error:
        KVGeometry.from_config({"num_hidden_layers": 0, "hidden_size": 8, "dtype": "float12"}, tp=0)
    assert [problem.split(" ")[0:3] for problem in error.value.problems] == [
        ["tp:", "0", "is"],
        ["model", "config:", "num_hidden_layers"],
        ["KV", "dtype:", "'float12'"],
        ["model", "config:", "num_attention_heads"],
    ]
