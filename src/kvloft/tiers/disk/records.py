"""What a segment's index says of each slot: a record (which block) and its heat (how used), as arrays."""

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvloft.keys import DIGEST_BYTES

Array: TypeAlias = npt.NDArray[Any]

RECORD = np.dtype([("check", "<u8"), ("digest", f"V{DIGEST_BYTES}"), ("stored", "<f8"), ("length", "<u8"), ("state", "<u8")])
"""One slot: a check of the rest, the key digest, when it was stored (seconds since 1970), payload length, state."""
HEAT = np.dtype([("used", "<u4"), ("hits", "<u4")])
"""One slot: when it was last used (seconds since 1970) and how often. Approximate: processes write it without a lock."""

PRESENT, BROKEN = 1, 2
"""States, besides 0 for empty. BROKEN: the medium failed here; the slot is not used again as long as the segment lives."""
CONDEMNED = 0xFFFFFFFF
"""As `hits`: somebody else than the owner found the block damaged or unwanted; the owner will remove it. `used` then says
which block, see `condemnation`."""

_ODD = [0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 | 1 for i in range(8)]
_ODDS = np.array(_ODD, "<u8")
_BODY = struct.Struct(f"<{DIGEST_BYTES}sdQQ")
_WORDS = struct.Struct("<7Q")
_CHECK = struct.Struct("<Q")
NOTHING = bytes(RECORD.itemsize)
"""The record of a slot that holds nothing."""


def make_record(digest: bytes, slot: int, stored: float, length: int, state: int = PRESENT) -> bytes:
    """The record of one slot. Its check tells a half-written record from a whole one; frames have their own."""
    body = _BODY.pack(digest, stored, length, state)
    a, b, c, d, e, f, g = _WORDS.unpack(body)
    k0, k1, k2, k3, k4, k5, k6, k7 = _ODD
    check = (slot + 1) * k0 + a * k1 + b * k2 + c * k3 + d * k4 + e * k5 + f * k6 + g * k7
    return _CHECK.pack(check & 0xFFFFFFFFFFFFFFFF) + body


def _check_of(records: Array, first: int) -> Array:
    """The checks that records from slot `first` on should have."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), -1)[:, 1:]
    slots = np.arange(first, first + len(records), dtype="<u8") + np.uint64(1)
    sums: Array = (words * _ODDS[1:]).sum(axis=1, dtype="<u8") + slots * _ODDS[0]
    return sums


def is_sound(records: Array, length: int, first: int = 0) -> Array:
    """Which of the records, from slot `first` on, are whole and speak of a block of `length` bytes."""
    sound: Array = (
        (records["state"] == PRESENT) & (records["length"] == length) & (records["check"] == _check_of(records, first))
    )
    return sound


def condemnation(check: int) -> Array:
    """The heat that condemns the block whose record has this check, and no other that comes into its slot later."""
    return np.array([(check & 0xFFFFFFFF, CONDEMNED)], HEAT)


def is_condemned(heat: Array, checks: Array) -> Array:
    """Which slots hold a block that was condemned."""
    condemned: Array = (heat["hits"] == CONDEMNED) & (heat["used"] == (checks & np.uint64(0xFFFFFFFF)))
    return condemned
