"""Tiny models with random weights, made on the spot, for runs of a real engine without downloads.

They need `pip install 'kvloft[vllm]'`.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from kvloft.errors import ConfigError, MissingExtra

SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
VOCABULARY = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """What is made.

    Args:
        kind: "llama" (full attention), "mistral" (every layer with a sliding window), "gemma3" (a hybrid: sliding-window
            layers, and every third with full attention) or "qwen3".
        layers: how many.
        hidden: width; heads are 32 wide, half of them share KV heads.
        window: tokens that a sliding-window layer sees.
        max_tokens: longest context.
        seed: of the weights.
    """

    kind: str = "llama"
    layers: int = 2
    hidden: int = 128
    window: int = 64
    max_tokens: int = 4096
    seed: int = 0

    def make(self, folder: Path) -> Path:
        """The model's directory below `folder`; made if it is not there. Weights, configuration, byte-level tokenizer.

        Raises:
            MissingExtra: transformers or torch are not installed.
            ConfigError: there is no such kind.
        """
        digest = sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        target = folder / f"{self.kind}-{digest}"
        if target.is_dir():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as scratch:
            made = Path(scratch) / "model"
            self._save(made)
            try:
                made.rename(target)
            except OSError:
                # Another process was quicker; what it made is the same.
                if not target.is_dir():
                    raise
        return target

    def _save(self, target: Path) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            import torch

            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise MissingExtra("vllm", "making a model") from error
        torch.manual_seed(self.seed)
        model = transformers.AutoModelForCausalLM.from_config(self._config(transformers), dtype=torch.float32)
        model.save_pretrained(target)
        _save_tokenizer(transformers, target, self.max_tokens)

    def _config(self, transformers: Any) -> Any:
        heads = self.hidden // 32
        common = {
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "head_dim": 32,
            "max_position_embeddings": self.max_tokens,
            # Wide enough that every token of the prompt sways the answer: otherwise wrong KV bytes would go unnoticed.
            "initializer_range": 0.2,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        match self.kind:
            case "llama":
                return transformers.LlamaConfig(**common)
            case "qwen3":
                return transformers.Qwen3Config(**common)
            case "mistral":
                return transformers.MistralConfig(**common, sliding_window=self.window)
            case "gemma3":
                kinds = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(self.layers)]
                return transformers.Gemma3TextConfig(
                    **common, sliding_window=self.window, layer_types=kinds, query_pre_attn_scalar=32
                )
            case _:
                raise ConfigError(f"kind: {self.kind!r} is unknown; choose one of: llama, mistral, gemma3, qwen3")


def _save_tokenizer(transformers: Any, target: Path, max_tokens: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=max_tokens
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(target)
