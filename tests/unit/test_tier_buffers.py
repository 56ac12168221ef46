"""Buffers that no tier takes, whatever its kind."""

from pathlib import Path

import numpy as np
import pytest

from kvloft.errors import TierError
from kvloft.keys import Namespace
from kvloft.tiers.base import Buffer
from kvloft.tiers.buffers import as_array
from kvloft.tiers.settings import read_tier

BLOCK = 4096


@pytest.mark.parametrize("kind", ["disk", "objects"])
@pytest.mark.parametrize(
    ("buffers", "words"),
    [
        ([], "1 keys with 0 buffers"),
        ([memoryview(bytearray(BLOCK))] * 2, "1 keys with 2 buffers"),
        ([memoryview(bytearray(BLOCK - 1))], "a buffer of 4095 bytes"),
        ([memoryview(np.zeros(BLOCK // 4, np.float32))], "format 'f'"),
        ([memoryview(np.zeros((2, BLOCK // 2), np.uint8))], "2 dimensions"),
        ([memoryview(bytearray(2 * BLOCK))[::2]], "give contiguous bytes, 4096 of them"),
    ],
)
def test_only_contiguous_bytes_of_a_block_are_taken(tmp_path: Path, kind: str, buffers: list[Buffer], words: str) -> None:
    settings: dict[str, object] = {"path": str(tmp_path), "capacity": "1MiB"}
    if kind == "objects":
        pytest.importorskip("obstore", reason="needs pip install 'kvloft[s3]'")
        settings = {"url": f"file://{tmp_path}"}
    tier = read_tier({"type": kind, **settings}).open(BLOCK, Namespace(model="buffers"))
    try:
        for submit in (tier.submit_store, tier.submit_load):
            with pytest.raises(TierError, match=words):
                submit(1, [b"key"], buffers)
        assert tier.drain(10) and not tier.poll()
    finally:
        tier.close()


def test_an_array_is_the_same_memory() -> None:
    memory = bytearray(4)
    as_array(memoryview(memory))[1] = 7
    assert memory == b"\0\7\0\0" and as_array(b"\1\2").tolist() == [1, 2]
