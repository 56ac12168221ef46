"""What is read of a model's config.json."""

import pytest

from kvloft.errors import ConfigError
from kvloft.model_config import ModelConfig

PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}


def test_fields_have_other_names_in_other_models():
    old = ModelConfig({"n_layer": 4, "n_head": 8, "n_embd": 64, "n_head_kv": 2})
    assert (old.layers, old.heads, old.hidden, old.kv_heads, old.head_dim) == (4, 8, 64, 2, 8)
    assert ModelConfig({"text_config": PLAIN, "vision_config": {}}).layers == 4
    assert ModelConfig(PLAIN).kv_heads == 8 and ModelConfig(PLAIN | {"multi_query": True}).kv_heads == 1


def test_faults_are_gathered_and_told_once():
    model = ModelConfig({"num_hidden_layers": "many", "num_attention_heads": True})
    assert (model.layers, model.layers, model.heads, model.hidden) == (1, 1, 1, 1)
    assert model.problems == [
        "model config: num_hidden_layers is 'many', not a positive integer",
        "model config: num_attention_heads is True, not a positive integer",
        "model config: hidden_size or n_embd is missing",
    ]


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 9}, [9] * 4),
        ({"sliding_window": 9, "use_sliding_window": False}, [None] * 4),
        ({"sliding_window": 9, "sliding_window_pattern": 3}, [9, 9, None, 9]),
        ({"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2}, [None, 9, None, 9]),
    ],
)
def test_windows(fields, windows):
    assert ModelConfig(PLAIN | fields).windows == windows


@pytest.mark.parametrize("text", ["[]", "{", "\xff"])
def test_no_config(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"^model config: "):
        ModelConfig(tmp_path)
