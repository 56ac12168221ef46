"""What a segment's index says of each slot: a record (which block) and its heat (how used), as arrays."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvloft.keys import DIGEST_BYTES

Array: TypeAlias = npt.NDArray[Any]

RECORD = np.dtype([("check", "<u8"), ("digest", f"V{DIGEST_BYTES}"), ("stored", "<f8"), ("length", "<u8"), ("state", "<u8")])
"""One slot: a check of the rest, the key digest, when it was stored (seconds since 1970), payload length, state."""
HEAT = np.dtype([("used", "<u4"), ("hits", "<u4")])
"""One slot: when it was last used (seconds since 1970) and how often. Approximate: processes write it without a lock."""

EMPTY, PRESENT, BROKEN = 0, 1, 2
"""States. BROKEN: the medium failed here; the slot stays out of use for as long as the segment lives."""
CONDEMNED = 0xFFFFFFFF
"""As `hits`: somebody else than the owner found the block damaged or unwanted; the owner will remove it. `used` then says
which block, see `condemnation`."""

_ODD = np.array([0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 | 1 for i in range(8)], "<u8")


def check_of(records: Array, first: int) -> Array:
    """The check that records from slot `first` on should have: a sum of their words, each times its own odd number, and of
    the slot. It tells a record half written from a whole one; the frame itself is checked by its own checksum."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), -1)[:, 1:]
    slots = np.arange(first, first + len(records), dtype="<u8") + np.uint64(1)
    sums: Array = (words * _ODD[1:]).sum(axis=1, dtype="<u8") + slots * _ODD[0]
    return sums


def make_records(digests: Sequence[bytes], first: int, stored: float, length: int, state: int = PRESENT) -> Array:
    """Records for neighbouring slots from `first` on."""
    records = np.zeros(len(digests), RECORD)
    records["digest"] = np.frombuffer(b"".join(digests), f"V{DIGEST_BYTES}")
    records["stored"], records["length"], records["state"] = stored, length, state
    records["check"] = check_of(records, first)
    return records


def is_sound(records: Array, length: int, first: int = 0) -> Array:
    """Which of the records, from slot `first` on, are whole and speak of a block of `length` bytes."""
    sound: Array = (
        (records["state"] == PRESENT) & (records["length"] == length) & (records["check"] == check_of(records, first))
    )
    return sound


def condemnation(check: int) -> Array:
    """The heat that condemns the block whose record has this check, and no other that comes into its slot later."""
    return np.array([(check & 0xFFFFFFFF, CONDEMNED)], HEAT)


def is_condemned(heat: Array, checks: Array) -> Array:
    """Which slots hold a block that was condemned."""
    condemned: Array = (heat["hits"] == CONDEMNED) & (heat["used"] == (checks & np.uint64(0xFFFFFFFF)))
    return condemned
