"""A block on a medium: a header that says what it should be, then its bytes.

The header, little-endian: magic (8 bytes), format version (2), header length (2), zero (4), namespace fingerprint (32), key
digest (32), payload length (8), XXH3-64 of the payload (8), XXH3-64 of the header up to here (8).
"""

import struct
from enum import StrEnum

import xxhash

from kvloft.tiers.base import Buffer

MAGIC = b"KVLOFT\r\n"
VERSION = 1
_FIELDS = struct.Struct("<8sHHI32s32sQQ")
_CHECK = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECK.size


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


def seal(fingerprint: bytes, digest: bytes, payload: Buffer) -> bytes:
    """The header for a payload, `HEADER_BYTES` long. Reads all of the payload, once."""
    head = _FIELDS.pack(
        MAGIC, VERSION, HEADER_BYTES, 0, fingerprint, digest, payload.nbytes, xxhash.xxh3_64_intdigest(payload)
    )
    return head + _CHECK.pack(xxhash.xxh3_64_intdigest(head))


def check(header: Buffer | bytes, payload: Buffer, fingerprint: bytes, digest: bytes) -> Defect | None:
    """What is wrong with a frame whose payload was read into `payload`, which has the length asked for; None if nothing is.

    The cheap questions come first, so that the reason is the most telling one: a foreign block is foreign, not corrupt.
    """
    if len(header) < HEADER_BYTES:
        return Defect.TRUNCATED
    magic, version, length, zero, namespace, key, nbytes, checksum = _FIELDS.unpack_from(header)
    if magic != MAGIC:
        return Defect.MAGIC
    if version != VERSION or length != HEADER_BYTES or zero:
        return Defect.VERSION
    if xxhash.xxh3_64_intdigest(header[: _FIELDS.size]) != _CHECK.unpack_from(header, _FIELDS.size)[0]:
        return Defect.HEADER
    if namespace != fingerprint:
        return Defect.NAMESPACE
    if key != digest:
        return Defect.KEY
    if nbytes != payload.nbytes:
        return Defect.LENGTH
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        return Defect.CHECKSUM
    return None


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
