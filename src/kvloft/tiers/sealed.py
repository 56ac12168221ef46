"""What becomes of a block before it is framed: nothing, compression, encryption."""

from typing import Protocol

import numpy as np

from kvloft.tiers.base import Buffer


class Codec(Protocol):
    """Turns blocks into what is at rest, and back. Safe to use from several threads at once."""

    def encode(self, digest: bytes, block: Buffer) -> Buffer:
        """What is to be at rest: the block itself, or new bytes. The digest is the block's name."""

    def longest(self, nbytes: int) -> int:
        """Bytes at rest, at most, of a block of `nbytes`."""

    def sink(self, block: Buffer) -> Buffer:
        """Where to read what is at rest: the block's own buffer, or a new one of the longest length."""

    def decode(self, digest: bytes, stored: Buffer, block: Buffer) -> bool:
        """Turn what was at rest into the block; False if it is not this block."""


class Plain(Codec):
    """At rest as it is."""

    def encode(self, digest: bytes, block: Buffer) -> Buffer:
        return block

    def longest(self, nbytes: int) -> int:
        return nbytes

    def sink(self, block: Buffer) -> Buffer:
        return block

    def decode(self, digest: bytes, stored: Buffer, block: Buffer) -> bool:
        if stored.nbytes != block.nbytes:
            return False
        if stored is not block:
            np.copyto(np.frombuffer(block, np.uint8), np.frombuffer(stored, np.uint8))
        return True
