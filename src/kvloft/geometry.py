"""How many bytes of KV cache a model makes, from its Hugging Face `config.json`, laid out as vLLM lays it out.

A block of `tokens` tokens is, for each attention layer, `2 * kv_heads * head_dim` values a token (keys and values), or for
multi-head latent attention (MLA) one latent vector of `kv_lora_rank + qk_rope_head_dim`. Tensor parallelism splits KV heads
over ranks and replicates them when there are fewer heads than ranks; latents are always replicated.

Hybrid models mix full attention with sliding windows. vLLM forms groups of equally many layers, so that a block of any group
has the same size; a group with a window keeps only the last `window` tokens of a prefix. Source: vLLM 0.32,
`vllm/v1/core/kv_cache_utils.py`; `tests/e2e/test_geometry_engines.py` holds the numbers against real engines.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from kvloft.errors import ConfigError
from kvloft.model_config import ModelConfig, Source

ALIGNMENT = 4096
"""vLLM rounds a slot of host memory up to whole pages of this many bytes."""

_DTYPE_BYTES = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8": 1,
}
_FP8_MLA_BYTES = 656
"""Bytes a token and layer of "fp8_ds_mla": 512 quantized, 16 of scales, 128 of RoPE part."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one block table.

    Args:
        layers: how many layers have their KV in one block of this group, padding included.
        window: tokens of the sliding window; None for full attention.
    """

    layers: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Sizes of a model's KV cache.

    Args:
        layer_bytes: bytes one layer keeps of one token on one rank.
        groups: vLLM's KV cache groups.
        tp: tensor-parallel ranks.
        replicated: all ranks hold the same bytes (MLA): one copy in host memory is enough.
    """

    layer_bytes: int
    groups: tuple[LayerGroup, ...]
    tp: int = 1
    replicated: bool = False

    @classmethod
    def from_config(cls, config: Source, kv_dtype: str = "auto", tp: int = 1) -> "KVGeometry":
        """Read a model's geometry.

        Args:
            config: a parsed `config.json`, the file, or the folder it lies in.
            kv_dtype: vLLM's `--kv-cache-dtype`; "auto" is the model's own.
            tp: vLLM's `--tensor-parallel-size`.

        Raises:
            ConfigError: fields are missing or make no sense; all faults at once.
        """
        model = ModelConfig(config)
        problems = model.problems
        if not isinstance(tp, int) or tp < 1:
            problems.append(f"tp: {tp!r} is not a number of ranks; give an integer of at least 1")
            tp = 1
        windows = model.windows
        value_bytes = _value_bytes(model.fields, kv_dtype, problems)
        problems += _other_layers(model.fields)
        mla = model.fields.get("kv_lora_rank") is not None
        if mla:
            latent = model.need("kv_lora_rank") + model.need("qk_rope_head_dim")
            layer_bytes = _FP8_MLA_BYTES if kv_dtype == "fp8_ds_mla" else latent * value_bytes
        else:
            kv_heads = model.kv_heads
            if max(kv_heads, tp) % min(kv_heads, tp):
                problems.append(f"tp: {kv_heads} KV heads do not divide over {tp} ranks, nor the ranks over the heads")
            layer_bytes = 2 * max(1, kv_heads // tp) * model.head_dim * value_bytes
        if problems:
            raise ConfigError(problems)
        return cls(layer_bytes, _groups(windows), tp, replicated=mla and tp > 1)

    @property
    def growing(self) -> int:
        """Groups whose part of a prefix grows with it: those of full attention, or all if there are none."""
        return sum(group.window is None for group in self.groups) or len(self.groups)

    @property
    def layers(self) -> int:
        """Layers in one block."""
        return self.groups[0].layers

    def block_bytes(self, tokens: int) -> int:
        """Bytes of one block of one group on one rank."""
        return self.layer_bytes * self.layers * tokens

    def slot_bytes(self, tokens: int) -> int:
        """Bytes of host memory for one block of one group, of all ranks, rounded up as vLLM does."""
        copies = 1 if self.replicated else self.tp
        return ceil(self.block_bytes(tokens) * copies / ALIGNMENT) * ALIGNMENT

    def bytes_per_token(self, tokens: int = 16) -> float:
        """Bytes of host memory for one more token of a long prefix, of all ranks, stored in blocks of `tokens`. Groups
        with a window add nothing: their part of a long prefix does not grow."""
        return self.growing * self.slot_bytes(tokens) / tokens


def _value_bytes(text: Mapping[str, Any], kv_dtype: str, problems: list[str]) -> int:
    name = kv_dtype
    if kv_dtype in ("auto", "fp8_ds_mla"):
        name = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        problems.append(f"KV dtype: {name!r} is unknown; choose one of: auto, fp8_ds_mla, {', '.join(_DTYPE_BYTES)}")
        return 1
    return _DTYPE_BYTES[name]


def _other_layers(text: Mapping[str, Any]) -> list[str]:
    """What is said against layers that keep something else than keys and values of tokens."""
    found = {
        str(kind): name
        for name in ("layer_types", "layers_block_type")
        if isinstance(kinds := text.get(name), list)
        for kind in kinds
        if kind not in ("full_attention", "sliding_attention", "attention")
    }
    return [
        f"model config: {name} has {kind!r}; sizes are known of full and sliding attention" for kind, name in found.items()
    ]


def _groups(windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """vLLM's groups: as many layers in each as the rarer kind has, or as the commoner one where they are nearly as many."""
    kinds = Counter(windows)
    size = min(kinds.values())
    if max(kinds.values()) < 1.5 * size:
        size = max(kinds.values())
    return tuple(LayerGroup(size, window) for window, count in kinds.items() for _ in range(ceil(count / size)))
