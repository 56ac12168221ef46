"""A model's Hugging Face `config.json`: one reader for all that is computed from it."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from kvloft.errors import ConfigError

Source: TypeAlias = Mapping[str, Any] | str | Path
"""A parsed `config.json`, the file, or the folder it lies in."""


class ModelConfig:
    """The fields of the language model. What is needed and missing, or no number, is taken as 1 and noted in `problems`.

    Raises:
        ConfigError: it cannot be read, or is no JSON object.
    """

    def __init__(self, config: Source) -> None:
        self.fields = _read(config)
        self.problems: list[str] = []

    def need(self, *names: str) -> int:
        """The first of these fields that is there, as a positive integer; else a problem and 1."""
        for name in names:
            value = self.fields.get(name)
            if value is not None:
                if _is_positive(value):
                    return value
                self.problems.append(f"model config: {name} is {value!r}, not a positive integer")
                return 1
        self.problems.append(f"model config: {' or '.join(names)} is missing")
        return 1

    def number(self, *names: str) -> int | None:
        """The first of these fields that is a positive integer."""
        return next((value for name in names if _is_positive(value := self.fields.get(name))), None)

    @cached_property
    def layers(self) -> int:
        """Layers of the model."""
        return self.need("num_hidden_layers", "n_layer", "num_layers")

    @cached_property
    def hidden(self) -> int:
        """Width of what layers hand on."""
        return self.need("hidden_size", "n_embd")

    @cached_property
    def heads(self) -> int:
        """Query heads."""
        return self.need("num_attention_heads", "n_head")

    @property
    def kv_heads(self) -> int:
        """Key-value heads before tensor parallelism: grouped (GQA), one (MQA), or as many as query heads."""
        own = self.number("num_key_value_heads", "num_kv_heads", "n_head_kv")
        return own or (1 if self.fields.get("multi_query") else self.heads)

    @property
    def head_dim(self) -> int:
        """Values of one head."""
        return self.number("head_dim") or self.hidden // self.heads

    @property
    def windows(self) -> list[int | None]:
        """The sliding window of each layer, None where it attends to everything."""
        window = self.number("sliding_window")
        if window is None or self.fields.get("use_sliding_window") is False:
            return [None] * self.layers
        kinds = self.fields.get("layer_types")
        if isinstance(kinds, list) and len(kinds) == self.layers:
            return [window if kind == "sliding_attention" else None for kind in kinds]
        pattern = self.number("sliding_window_pattern")
        if pattern and pattern > 1:
            return [None if (layer + 1) % pattern == 0 else window for layer in range(self.layers)]
        return [window] * self.layers


def _is_positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _read(config: Source) -> Mapping[str, Any]:
    if isinstance(config, (str, Path)):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"is no JSON: {error}"
            raise ConfigError(f"model config: {path}: {reason}; give a Hugging Face config.json or its folder") from error
    if not isinstance(config, Mapping):
        raise ConfigError(f"model config: a JSON object is needed, not {type(config).__name__}")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config
