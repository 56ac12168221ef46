"""Namespaces: what differs never meets, what is equal finds its blocks again. Key digests likewise."""

import json
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloft.errors import ConfigError
from kvloft.keys import DIGEST_BYTES, Namespace, describe_facts, digest_key

FULL = Namespace(
    model="meta-llama/Llama-3.1-8B",
    revision="d04e592",
    weights="sha256:77aa",
    dtype="bfloat16",
    layout="NHD",
    geometry={"layers": 32, "kv_heads": 8, "head_size": 128, "groups": [{"kind": "full", "layers": 32}]},
    rope={"theta": 500000.0, "scaling": {"type": "llama3", "factor": 8.0}},
    parallel={"tensor": 2, "pipeline": 1, "ranks": [0, 1]},
    block_size=16,
    hash_algorithm="sha256_cbor",
    hash_seed="0",
    tenant="a secret salt",
    extra={"lora": None},
)
CHANGES: dict[str, list[Any]] = {
    "model": ["meta-llama/Llama-3.1-70B"],
    "revision": [None, "d04e593"],
    "weights": [None, "sha256:77ab"],
    "dtype": ["float16", "fp8_e4m3"],
    "layout": ["HND"],
    "geometry": [{"layers": 32, "kv_heads": 8, "head_size": 128}, {**FULL.geometry, "kv_heads": 4}],
    "rope": [{"theta": 10000.0, "scaling": FULL.rope["scaling"]}, {**FULL.rope, "scaling": {"type": "yarn", "factor": 8.0}}],
    "parallel": [{"tensor": 4, "pipeline": 1, "ranks": [0, 1]}, {"tensor": 2, "pipeline": 1, "ranks": [1, 0]}],
    "block_size": [32],
    "hash_algorithm": ["xxhash_cbor"],
    "hash_seed": [None, "1", 1],
    "tenant": ["", "another salt"],
    "extra": [{}, {"lora": "adapter"}],
}


def test_every_field_counts() -> None:
    assert set(CHANGES) == {field.name for field in fields(Namespace)}
    variants = [FULL, *(replace(FULL, **{name: value}) for name, values in CHANGES.items() for value in values)]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert len({variant.name for variant in variants}) == len(variants)


def test_equal_configurations_meet() -> None:
    turned = replace(FULL, geometry=dict(reversed(FULL.geometry.items())), rope={**FULL.rope, "theta": 500000})
    assert turned == FULL and hash(turned) == hash(FULL) and turned.fingerprint == FULL.fingerprint
    assert replace(FULL, parallel={"tensor": 2, "pipeline": 1, "ranks": (0, 1)}) == FULL


def test_fingerprint_is_the_same_in_every_process() -> None:
    code = "from test_keys import FULL; print(FULL.fingerprint.hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            text=True,
            capture_output=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert seen == {FULL.fingerprint.hex()}


def test_fingerprint_is_what_it_was() -> None:
    """Blocks written by a release are found by the next one: a change of this is a change of the format."""
    assert Namespace(model="m").fingerprint.hex() == "46a9ad41ae0154928a93a6a0cdc5d94f7988449aa4ae4c2280aca7540fa309c3"


def test_secrets_are_not_written_down() -> None:
    for text in (FULL.to_json(), repr(FULL), str(describe_facts(FULL.facts()))):
        assert "a secret salt" not in text


def test_described_in_words() -> None:
    words = dict(describe_facts(json.loads(FULL.to_json())))
    assert words["model"] == "meta-llama/Llama-3.1-8B"
    assert words["block size"] == "16 tokens"
    assert words["parallel layout: tensor"] == "2"
    assert words["rotary embedding: scaling"] == '{"factor": 8.0, "type": "llama3"}'
    assert words["tenant"].startswith("salted (digest ")
    assert "revision" not in dict(describe_facts(Namespace(model="m").facts()))


@pytest.mark.parametrize("wrong", [{"x": b"bytes"}, {1: "number as a name"}, {"x": {"y": {1, 2}}}, {"x": [object()]}])
def test_what_has_no_canonical_form_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"namespace\.geometry"):
        Namespace(model="m", geometry=wrong)


keys = st.recursive(
    st.binary(max_size=6) | st.text(max_size=4) | st.integers(), lambda part: st.lists(part, max_size=3).map(tuple)
)


@given(a=keys, b=keys)
def test_keys_share_a_digest_only_if_they_are_the_same(a: Any, b: Any) -> None:
    one, other = digest_key(FULL, a), digest_key(FULL, b)
    assert len(one) == DIGEST_BYTES
    assert (one == other) == (a == b and type(a) is type(b))


def test_a_key_has_another_digest_in_another_namespace() -> None:
    assert digest_key(FULL, b"key") != digest_key(replace(FULL, tenant=""), b"key")


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="float"):
        digest_key(FULL, 1.5)
