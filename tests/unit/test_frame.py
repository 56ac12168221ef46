"""Frames: sound ones come back, all others are told apart by what is wrong with them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloft.tiers.frame import HEADER_BYTES, MAGIC, VERSION, Defect, check, seal, unpack

SPACE, OTHER = bytes(range(32)), bytes(32)
KEY = bytes(range(32, 64))


def framed(payload: bytes, space: bytes = SPACE, key: bytes = KEY) -> bytes:
    return seal(space, key, memoryview(payload)) + payload


@given(payload=st.binary(max_size=300))
def test_a_sound_frame_comes_back(payload: bytes) -> None:
    into = memoryview(bytearray(len(payload)))
    assert unpack(framed(payload), into, SPACE, KEY) is None
    assert bytes(into) == payload


@given(payload=st.binary(min_size=1, max_size=300), data=st.data())
def test_no_flipped_bit_is_overlooked(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(framed(payload))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    into = memoryview(bytearray(len(payload)))
    assert unpack(bytes(frame), into, SPACE, KEY) is not None
    assert not any(into)


@given(payload=st.binary(min_size=1, max_size=300), data=st.data())
def test_no_cut_and_no_growth_is_overlooked(payload: bytes, data: st.DataObject) -> None:
    frame = framed(payload)
    into = memoryview(bytearray(len(payload)))
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert unpack(frame[:cut], into, SPACE, KEY) in (Defect.TRUNCATED, Defect.LENGTH)
    assert unpack(frame + data.draw(st.binary(min_size=1)), into, SPACE, KEY) is Defect.LENGTH
    assert not any(into)


def test_each_defect_is_named() -> None:
    payload = b"block" * 9
    into = memoryview(bytearray(len(payload)))
    sound = framed(payload)
    assert unpack(b"", into, SPACE, KEY) is Defect.TRUNCATED
    assert unpack(b"something else entirely".ljust(200), into, SPACE, KEY) is Defect.MAGIC
    assert unpack(MAGIC + struct.pack("<H", VERSION + 1) + sound[10:], into, SPACE, KEY) is Defect.VERSION
    assert unpack(sound[:70] + b"!" + sound[71:], into, SPACE, KEY) is Defect.HEADER
    assert unpack(framed(payload, space=OTHER), into, SPACE, KEY) is Defect.NAMESPACE
    assert unpack(framed(payload, key=OTHER), into, SPACE, KEY) is Defect.KEY
    assert unpack(framed(payload[1:]), into, SPACE, KEY) is Defect.LENGTH
    assert unpack(sound[:-1] + b"!", into, SPACE, KEY) is Defect.CHECKSUM


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_header_may_lie_in_any_buffer(kind: type) -> None:
    payload = b"x" * 64
    frame = framed(payload)
    assert check(kind(frame[:HEADER_BYTES]), memoryview(payload), SPACE, KEY) is None


def test_the_format_is_what_it_was() -> None:
    """Blocks written by a release are found by the next one: a change of this is a change of VERSION."""
    assert HEADER_BYTES == 104
    assert seal(SPACE, KEY, memoryview(b"block")).hex() == (
        "4b564c4f46540d0a0100680000000000"
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
        "0500000000000000a35494d1ef2fede7b4d1d3b7d4c0d14b"
    )
