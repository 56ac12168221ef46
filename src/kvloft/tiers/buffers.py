"""Buffers that tiers are handed: what they must be, and how their bytes are seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvloft.errors import TierError
from kvloft.request import Key
from kvloft.tiers.base import Buffer


def check_buffers(tier: str, keys: Sequence[Key], buffers: Sequence[Buffer], block_bytes: int) -> None:
    """Refuse a job whose buffers are not what the contract says.

    Args:
        tier: its name, for the error.
        keys: of the job's blocks.
        buffers: theirs.
        block_bytes: of each block.

    Raises:
        TierError: there are more or fewer buffers than keys, or one is not `block_bytes` contiguous bytes.
    """
    if len(keys) != len(buffers):
        raise TierError(f"{tier}: {len(keys)} keys with {len(buffers)} buffers; give one buffer for each key")
    for buffer in buffers:
        if buffer.nbytes != block_bytes or buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.c_contiguous:
            raise TierError(
                f"{tier}: a buffer of {buffer.nbytes} bytes (format {buffer.format!r}, {buffer.ndim} dimensions); "
                f"give contiguous bytes, {block_bytes} of them"
            )


def as_array(data: bytes | Buffer) -> NDArray[np.uint8]:
    """The same bytes as an array; writable if they are."""
    return np.frombuffer(data, np.uint8)
