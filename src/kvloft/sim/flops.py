"""How much a model computes for a token of a prompt, from its Hugging Face `config.json`.

A multiplication and an addition for each parameter of the matrices that a token meets, and, in attention, for each value of
the tokens that it looks at. Embeddings are looked up, and the last layer's logits are computed for the last token alone, so
neither counts. Of a mixture of experts only those that a token is sent to count.
"""

from kvloft.errors import ConfigError
from kvloft.model_config import ModelConfig, Source

_UNGATED = (
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "phi",
    "gpt_bigcode",
    "starcoder2",
    "nemotron",
)
"""Model types whose feed-forward layers are two matrices; three (gate, up, down) elsewhere."""


def active_parameters(config: Source) -> int:
    """Parameters that each token of a prompt is multiplied with.

    Raises:
        ConfigError: fields are missing; all of them at once.
    """
    return _Model(config).active()


def prefill_flops(config: Source, context: float) -> float:
    """Floating-point operations for one token of a prompt.

    Args:
        config: a parsed `config.json`, the file, or its folder.
        context: tokens that it looks at, on average.

    Raises:
        ConfigError: fields are missing; all of them at once.
    """
    model = _Model(config)
    return 2.0 * model.active() + model.attention_flops(context)


class _Model:
    """Reads what it needs of a config."""

    def __init__(self, config: Source) -> None:
        self._config = own = ModelConfig(config)
        self.layers, self.hidden, self.heads = own.layers, own.hidden, own.heads
        self.head_dim, self.kv_heads = own.head_dim, own.kv_heads
        self.matrices = 2 if own.fields.get("model_type") in _UNGATED else 3
        if own.problems:
            raise ConfigError(own.problems)

    def active(self) -> int:
        sparse = self._sparse_layers()
        return (
            self.layers * self._attention()
            + (self.layers - sparse) * self._feed_forward(self._dense_width())
            + sparse * self._experts()
        )

    def attention_flops(self, context: float) -> float:
        """Scores and weighted sums over `context` tokens, less in layers that see only a window."""
        if self._config.number("kv_lora_rank"):
            width = self.heads * (self._qk_width() + self._v_width()) / 2
        else:
            width = self.heads * self.head_dim
        seen = sum(min(context, window or context) for window in self._config.windows)
        return 4.0 * width * seen

    def _attention(self) -> int:
        """Parameters of one layer's attention."""
        latent = self._config.number("kv_lora_rank")
        if not latent:
            return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        rope, wide = self._config.number("qk_rope_head_dim") or 0, self.heads * self._qk_width()
        q_rank = self._config.number("q_lora_rank")
        query = q_rank * (self.hidden + wide) if q_rank else self.hidden * wide
        back = latent * self.heads * (self._qk_width() - rope + self._v_width())
        return query + self.hidden * (latent + rope) + back + self.heads * self._v_width() * self.hidden

    def _qk_width(self) -> int:
        return (self._config.number("qk_nope_head_dim") or self.head_dim) + (self._config.number("qk_rope_head_dim") or 0)

    def _v_width(self) -> int:
        return self._config.number("v_head_dim") or self.head_dim

    def _feed_forward(self, width: int) -> int:
        return self.matrices * self.hidden * width

    def _dense_width(self) -> int:
        return self._config.number("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim") or 4 * self.hidden

    def _experts(self) -> int:
        """Parameters of one sparse layer that a token meets: its experts, the shared ones, the router."""
        width = self._config.number("moe_intermediate_size", "intermediate_size") or 4 * self.hidden
        chosen = self._config.number("num_experts_per_tok", "experts_per_token", "moe_topk", "num_selected_experts") or 1
        shared = (self._config.number("n_shared_experts", "num_shared_experts") or 0) * width
        shared += self._config.number("shared_expert_intermediate_size") or 0
        if self._config.fields.get("model_type") in ("llama4", "llama4_text"):
            shared += width
        return self._feed_forward(chosen * width + shared) + self.hidden * self._experts_in_all()

    def _experts_in_all(self) -> int:
        return self._config.number("n_routed_experts", "num_local_experts", "num_experts") or 0

    def _sparse_layers(self) -> int:
        if self._experts_in_all() < 2:
            return 0
        dense = self._config.fields.get("mlp_only_layers")
        listed = {layer for layer in dense if isinstance(layer, int)} if isinstance(dense, list) else set()
        step = self._config.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
        first = self._config.number("first_k_dense_replace") or 0
        return sum(layer >= first and layer not in listed and (layer + 1) % step == 0 for layer in range(self.layers))
