"""The namespace of an engine's blocks: equal for the same configuration, different for each thing that changes the bytes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")

from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

import kvloft.vllm.namespace as module
from kvloft.errors import ConfigError
from kvloft.vllm.namespace import namespace_of, weights_digest


def offloading(**changes: Any) -> OffloadingConfig:
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
        worker_kv_bytes_per_block=8192,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig("model", "bfloat16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, True),
        kv_cache_layout="NHD",
    )
    return replace(config, **changes)


class HfConfig:
    def __init__(self, **facts: Any) -> None:
        self.facts = {"hidden_size": 64, "rope_parameters": {"rope_theta": 10000.0}, "_name_or_path": "/one/place", **facts}
        self._commit_hash = None

    def to_dict(self) -> dict[str, Any]:
        return self.facts


def model_config(hf: HfConfig | None = None, **changes: Any) -> SimpleNamespace:
    hf = hf or HfConfig()
    facts = {"model": "model", "revision": "r1", "hf_config": hf, "hf_text_config": hf, "dtype": "bfloat16", "seed": 0}
    facts |= {"quantization": None, "tokenizer": "model", "tokenizer_revision": None}
    return SimpleNamespace(**{**facts, **changes})


def engine(**changes: Any) -> SimpleNamespace:
    facts = {
        "model_config": model_config(),
        "lora_config": None,
        "load_config": SimpleNamespace(load_format="auto"),
        "attention_config": SimpleNamespace(backend=None),
        "cache_config": SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256"),
        "speculative_config": None,
    }
    return SimpleNamespace(**{**facts, **changes})


@pytest.fixture
def fingerprint(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(
        config: OffloadingConfig | None = None,
        made: Any = None,
        block_bytes: int = 16384,
        writer: str = "vllm",
        label: str = "",
        seed: str = "seed",
    ) -> bytes:
        monkeypatch.setattr(module, "engine_config", lambda: made or engine())
        monkeypatch.setattr(module, "none_hash_seed", lambda: seed)
        return namespace_of(config or offloading(), block_bytes, writer, label).fingerprint

    return of


def test_the_same_configuration_finds_its_blocks_again(fingerprint: Any) -> None:
    elsewhere = engine(model_config=model_config(HfConfig(_name_or_path="/another/place", transformers_version="5")))
    assert fingerprint() == fingerprint() == fingerprint(made=elsewhere)
    assert fingerprint(offloading(engine_id="another", extra_config={"cpu_bytes_to_use": 1})) == fingerprint()


def test_each_thing_that_changes_the_bytes_changes_the_namespace(fingerprint: Any) -> None:
    parallel = offloading().parallel
    draft = SimpleNamespace(draft_model_config=model_config(model="draft"))
    other_draft = SimpleNamespace(draft_model_config=model_config(model="draft", revision="r2"))
    variants = [
        fingerprint(),
        fingerprint(offloading(model=OffloadingModelConfig("other", "bfloat16"))),
        fingerprint(offloading(model=OffloadingModelConfig("model", "fp8"))),
        fingerprint(offloading(cache=OffloadingCacheConfig(16, 2))),
        fingerprint(offloading(groups=(OffloadingGroupConfig(32, ("layer.0", "layer.1"), 0),))),
        fingerprint(offloading(groups=(OffloadingGroupConfig(16, ("layer.1", "layer.0"), 0),))),
        fingerprint(offloading(kv_cache_layout="HND")),
        fingerprint(offloading(canonical_layout=True)),
        fingerprint(offloading(replicated_layout=True)),
        fingerprint(offloading(worker_kv_bytes_per_block=4096)),
        fingerprint(offloading(parallel=replace(parallel, tp_size=1, pp_size=2))),
        fingerprint(offloading(parallel=replace(parallel, dcp_size=2))),
        fingerprint(block_bytes=32768),
        fingerprint(writer="kvloft"),
        fingerprint(label="adapter 2"),
        fingerprint(seed="another"),
        fingerprint(made=engine(model_config=model_config(revision="r2"))),
        fingerprint(made=engine(model_config=model_config(HfConfig(rope_parameters={"rope_theta": 5e5})))),
        fingerprint(made=engine(model_config=model_config(HfConfig(rms_norm_eps=1e-6)))),
        fingerprint(made=engine(model_config=model_config(dtype="float16"))),
        fingerprint(made=engine(model_config=model_config(quantization="awq"))),
        fingerprint(made=engine(attention_config=SimpleNamespace(backend="FLASHINFER"))),
        fingerprint(made=engine(cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="xxhash"))),
        fingerprint(made=engine(load_config=SimpleNamespace(load_format="dummy"))),
        fingerprint(made=engine(load_config=SimpleNamespace(load_format="dummy"), model_config=model_config(seed=1))),
        fingerprint(made=engine(speculative_config=draft)),
        fingerprint(made=engine(speculative_config=other_draft)),
    ]
    assert len(set(variants)) == len(variants)


def test_what_cannot_be_told_apart_needs_a_label(fingerprint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r'LoRA adapters are known .* by their names alone; add "namespace"'):
        fingerprint(made=engine(lora_config=object()))
    assert fingerprint(made=engine(lora_config=object()), label="adapters of May")
    with pytest.raises(ConfigError, match="neither a directory with weights nor of a known revision"):
        fingerprint(made=engine(model_config=model_config(revision=None)))
    monkeypatch.setattr(module, "engine_config", lambda: None)
    with pytest.raises(ConfigError, match="out of reach"):
        namespace_of(offloading(), 16384, "vllm")
    assert namespace_of(offloading(), 16384, "vllm", "label").revision is None


def write_weights(path: Path, tensors: dict[str, bytes]) -> None:
    """A safetensors file."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


def test_weights_are_told_apart_by_each_of_their_tensors(tmp_path: Path) -> None:
    tensors = {f"layer.{at}": bytes([at]) * 50_000 for at in range(30)}
    write_weights(tmp_path / "model.safetensors", tensors)
    digest = weights_digest(str(tmp_path))
    assert digest is not None and digest == weights_digest(str(tmp_path))
    for changed in ("layer.0", "layer.17", "layer.29"):
        write_weights(tmp_path / "model.safetensors", {**tensors, changed: b"\xff" * 50_000})
        assert weights_digest(str(tmp_path)) != digest
    write_weights(tmp_path / "model.safetensors", {**tensors, "more": b"1"})
    assert weights_digest(str(tmp_path)) != digest


def test_weights_without_a_readable_header_are_sampled(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a header" * 10_000)
    (tmp_path / "model.bin").write_bytes(bytes(1_000_000))
    digest = weights_digest(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(bytes(500_000) + b"\x01" * 500_000)
    assert weights_digest(str(tmp_path)) not in (None, digest)


def test_the_same_weights_in_another_place_are_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_weights(tmp_path / name / "model.safetensors", {"layer": b"x" * 10_000})
    assert weights_digest(str(tmp_path / "one")) == weights_digest(str(tmp_path / "two"))


def test_no_directory_and_no_weights_have_no_digest(tmp_path: Path) -> None:
    assert weights_digest("organisation/model") is None
    assert weights_digest(str(tmp_path)) is None
