"""What kvloft's blocks of a vLLM engine mean: the namespace, from the engine's own configuration."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from vllm.platforms import current_platform
from vllm.v1.kv_offload.config import OffloadingConfig

from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.vllm.compat import RELEASE, engine_config, none_hash_seed

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.safetensors.index.json")
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def namespace_of(config: OffloadingConfig, block_bytes: int, writer: str, label: str = "") -> Namespace:
    """The namespace of an engine's blocks.

    Args:
        config: what vLLM gives to an offloading spec.
        block_bytes: of one block of all ranks, padding included.
        writer: whose worker lays out the bytes.
        label: from the settings; tells apart what kvloft cannot, such as adapters of one name.

    Raises:
        ConfigError: the engine's configuration is out of reach, or it has adapters, and no label is given.
    """
    engine = engine_config()
    if engine is None and not label:
        raise ConfigError(
            "namespace: the engine's configuration is out of reach, so kvloft cannot tell its model's revision and weights; "
            'add "namespace": a text that changes whenever the model, its weights or its position encoding do'
        )
    if engine is not None and engine.lora_config is not None and not label:
        raise ConfigError(
            'namespace: LoRA adapters are known to the cache by their names alone; add "namespace": a text that changes '
            "whenever an adapter of the same name is replaced"
        )
    model = _model_facts(engine.model_config) if engine is not None else {}
    if model and model["weights"] is None and model["revision"] is None and not label:
        raise ConfigError(
            f"namespace: model {config.model.name!r} is neither a directory with weights nor of a known revision, so kvloft "
            'cannot tell its weights; add "namespace": a text that changes whenever they do'
        )
    extra = {"label": label, "writer": writer, "platform": current_platform.device_type, "vllm": list(RELEASE)}
    if engine is not None:
        extra |= _extra_facts(engine)
    parallel = config.parallel
    return Namespace(
        model=config.model.name,
        revision=model.get("revision"),
        weights=model.get("weights"),
        dtype=config.model.dtype,
        layout=f"{config.kv_cache_layout or 'engine'}{', canonical' if config.canonical_layout else ''}",
        geometry={
            "block_bytes": block_bytes,
            "rank_bytes": config.worker_kv_bytes_per_block,
            "blocks_per_chunk": config.cache.blocks_per_chunk,
            "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        },
        rope=model.get("rope", {}),
        parallel={
            "ranks": parallel.world_size,
            "tensor": parallel.tp_size,
            "pipeline": parallel.pp_size,
            "prefill_context": parallel.pcp_size,
            "decode_context": parallel.dcp_size,
            "replicated": config.replicated_layout,
        },
        block_size=config.groups[0].tokens_per_block * config.cache.blocks_per_chunk,
        hash_algorithm=str(engine.cache_config.prefix_caching_hash_algo) if engine is not None else "",
        hash_seed=none_hash_seed(),
        extra=extra,
    )


def _model_facts(model: Any) -> dict[str, Any]:
    """Revision, weights and position encoding of one model configuration of vLLM."""
    text = _plain(model.hf_text_config.to_dict())
    return {
        "revision": model.revision or getattr(model.hf_config, "_commit_hash", None),
        "weights": weights_digest(model.model),
        "rope": {name: value for name, value in text.items() if "rope" in name or "rotary" in name},
    }


def _extra_facts(engine: Any) -> dict[str, Any]:
    """What else changes the bytes of a block."""
    model, cache = engine.model_config, engine.cache_config
    facts: dict[str, Any] = {
        "model_config": _digest(_plain(model.hf_config.to_dict())),
        "model_dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "tokenizer": f"{model.tokenizer} {model.tokenizer_revision}",
        "load_format": str(engine.load_config.load_format),
        "attention": str(engine.attention_config.backend),
        "cache_dtype": str(cache.cache_dtype),
    }
    if facts["load_format"] == "dummy":
        facts["seed"] = model.seed
    if engine.speculative_config is not None and engine.speculative_config.draft_model_config is not None:
        draft = engine.speculative_config.draft_model_config
        facts["draft"] = {"model": draft.model, **_model_facts(draft)}
    return facts


def weights_digest(model: str) -> str | None:
    """A digest of a local model's weight files: their names, sizes, headers, and a sample of each tensor. Cheap, and it
    changes with the weights, wherever they lie. None for a model that is no local directory: there the revision tells."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    digest = hashlib.blake2b(digest_size=16)
    files = sorted({path for pattern in _WEIGHTS for path in folder.rglob(pattern) if path.is_file()})
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode())
        with path.open("rb") as file:
            for offset in _samples(path, file, size):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest() if files else None


def _samples(path: Path, file: BinaryIO, size: int) -> Iterable[int]:
    """Where to look: in the middle of each tensor, where the file says where these lie, else here and there."""
    try:
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(min(length, size)))
            spans = [tensor["data_offsets"] for name, tensor in tensors.items() if name != "__metadata__"]
            return sorted({8 + length + max(start, (start + end - _SAMPLE_BYTES) // 2) for start, end in spans})
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # No header that can be read: as with any other file.
    last = max(0, size - _SAMPLE_BYTES)
    return sorted({last * at // (_SAMPLES - 1) for at in range(_SAMPLES)})


def _digest(facts: Any) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """JSON's own types; what is none of them, as text. Where a model was loaded from, and by what library, is left out."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if k not in ("_name_or_path", "transformers_version")}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
