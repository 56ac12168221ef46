"""A block on a medium: a header that says what it should be, then its bytes.

The header, little-endian: magic (8 bytes), format version (2), header length (2), zero (4), namespace fingerprint (32), key
digest (32), payload length (8), XXH3-64 of the payload (8), XXH3-64 of the header up to here (8).
"""

from enum import StrEnum

from kvloft import _frames
from kvloft.tiers.base import Buffer

MAGIC, VERSION, HEADER_BYTES = _frames.MAGIC, _frames.VERSION, _frames.HEADER_BYTES


class Defect(StrEnum):
    """Why a frame was refused."""

    TRUNCATED = "truncated"
    """Not even a whole header."""
    MAGIC = "magic"
    """Not a frame at all."""
    VERSION = "version"
    """Written by another version of the format."""
    HEADER = "header"
    """The header does not match its own checksum."""
    NAMESPACE = "namespace"
    """A block of another model, layout or tenant."""
    KEY = "key"
    """Another block than the one asked for."""
    LENGTH = "length"
    """A payload of another length than asked for, or cut short."""
    CHECKSUM = "checksum"
    """The payload does not match its checksum."""


_DEFECTS: tuple[Defect | None, ...] = (None, *Defect)


def seal(fingerprint: bytes, digest: bytes, payload: Buffer) -> bytes:
    """The header for a payload, `HEADER_BYTES` long. Reads all of the payload, once."""
    return _frames.seal(fingerprint, digest, payload)


def check(header: Buffer | bytes, payload: Buffer, fingerprint: bytes, digest: bytes) -> Defect | None:
    """What is wrong with a frame whose payload was read into `payload`, which has the length asked for; None if nothing is.

    The cheap questions come first, so that the reason is the most telling one: a foreign block is foreign, not corrupt.
    """
    return _DEFECTS[_frames.check(header, payload, fingerprint, digest)]


def defects(numbers: bytes) -> list[Defect | None]:
    """What the numbers stand for that the compiled part gives to what is wrong with frames."""
    return [_DEFECTS[number] for number in numbers]


def unpack(frame: Buffer | bytes, into: Buffer, fingerprint: bytes, digest: bytes) -> Defect | None:
    """Check a whole frame and, if it is sound, copy its payload into `into`, which has the block's length."""
    whole = memoryview(frame)
    payload = whole[HEADER_BYTES:]
    defect = check(whole[:HEADER_BYTES], payload, fingerprint, digest)
    if defect is None and payload.nbytes != into.nbytes:
        return Defect.LENGTH
    if defect is None:
        into[:] = payload
    return defect
