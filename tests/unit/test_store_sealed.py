"""Compression and encryption: what comes back, what is refused, what never repeats, what is never shown."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloft.errors import ConfigError, MissingExtra
from kvloft.keys import Namespace
from kvloft.tiers import Presence, Status
from kvloft.tiers.objects import ObjectAccess, ObjectTier
from kvloft.tiers.sealed import Sealed
from kvloft.tiers.secret import Secret
from store_media import RawFolder
from store_use import BLOCK, Use

SECRET = "correct horse battery staple"
NAMESPACE = Namespace(model="m", dtype="bfloat16", tenant="a")
DIGEST = bytes(range(32))
pytest.importorskip("cryptography")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKS_SECRET", SECRET)
    monkeypatch.setenv("OTHER_SECRET", SECRET + "!")


def sealed(**changes: Any) -> Sealed:
    given = {"namespace": NAMESPACE, "secret": Secret("env:BLOCKS_SECRET"), **changes}
    return Sealed(given.pop("namespace"), **given)


WAYS: list[dict[str, Any]] = [{}, {"compression": 1}, {"secret": None, "compression": 3}]


def opened(codec: Sealed, stored: Any, length: int, digest: bytes = DIGEST) -> bytes | None:
    block = bytearray(length)
    return bytes(block) if codec.decode(digest, memoryview(stored), memoryview(block)) else None


@pytest.mark.parametrize("way", WAYS)
@given(block=st.one_of(st.binary(max_size=300), st.binary(min_size=1000, max_size=3000), st.integers(0, 5000).map(bytes)))
@settings(max_examples=40, deadline=None)
def test_what_went_in_comes_out(way: dict[str, Any], block: bytes) -> None:
    codec = sealed(**way)
    stored = codec.encode(DIGEST, memoryview(block))
    assert stored.nbytes <= codec.longest(len(block)) == codec.sink(memoryview(block)).nbytes
    assert opened(codec, stored, len(block)) == block
    assert opened(sealed(**way), stored, len(block)) == block, "another process with the same secret reads it"


@pytest.mark.parametrize("way", WAYS)
def test_any_changed_bit_is_refused(way: dict[str, Any]) -> None:
    codec = sealed(**way)
    block = np.arange(300, dtype=np.uint16).view(np.uint8).tobytes() * 2
    stored = bytearray(codec.encode(DIGEST, memoryview(block)))
    for at in range(len(stored)):
        for bit in (1, 0x80):
            stored[at] ^= bit
            # Without encryption, a bit that stands for nothing may change; what comes out is right or refused.
            assert opened(codec, stored, len(block)) in ((None,) if "secret" not in way else (None, block)), at
            stored[at] ^= bit
    for length in range(len(stored)):
        assert opened(codec, stored[:length], len(block)) is None
    assert opened(codec, stored, len(block) + 2) is None


@pytest.mark.parametrize(
    "other",
    [
        {"secret": Secret("env:OTHER_SECRET")},
        {"namespace": Namespace(model="m", dtype="bfloat16", tenant="b")},
        {"namespace": Namespace(model="n", dtype="bfloat16", tenant="a")},
        {"secret": None, "compression": 1},
    ],
)
def test_only_the_same_secret_tenant_and_model_open_it(other: dict[str, Any]) -> None:
    stored = sealed().encode(DIGEST, memoryview(b"block " * 9))
    assert opened(sealed(**other), stored, 54) is None
    assert sealed(**other).label != sealed().label
    assert sealed(**other).rename(DIGEST) != sealed().rename(DIGEST)


def test_a_block_under_anothers_name_is_refused() -> None:
    stored = sealed().encode(DIGEST, memoryview(b"block " * 9))
    assert opened(sealed(), stored, 54, DIGEST[::-1]) is None


def nonces(codec: Sealed, count: int) -> set[bytes]:
    return {bytes(codec.encode(DIGEST, memoryview(b"x"))[12:40]) for _ in range(count)}


def test_no_salt_and_nonce_are_used_twice() -> None:
    """Not by threads, not by another object, not by a forked process."""
    codec, seen, lock = sealed(), set(), threading.Lock()

    def work() -> None:
        mine = nonces(codec, 500)
        with lock:
            assert len(mine) == 500 and not mine & seen
            seen.update(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others = nonces(sealed(), 500)
    assert len(seen) == 2000 and not seen & others
    script = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_store_sealed import nonces, sealed
codec = sealed()
before = nonces(codec, 20)
ends = os.pipe()
if os.fork() == 0:
    os.write(ends[1], b"".join(nonces(codec, 20)))
    os._exit(0)
mine = before | nonces(codec, 20)
os.wait()
theirs = os.read(ends[0], 10000)
theirs = {theirs[at : at + 28] for at in range(0, len(theirs), 28)}
assert len(theirs) == 20 and len(mine) == 40 and not mine & theirs
"""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    subprocess.run([sys.executable, "-c", script, here], check=True, env=environment, timeout=60)


def test_the_same_block_never_looks_the_same() -> None:
    codec = sealed()
    block = memoryview(bytes(64))
    one, two = bytes(codec.encode(DIGEST, block)), bytes(codec.encode(DIGEST, block))
    assert one[40:] != two[40:] and len(one) == len(two) == codec.longest(64)


def test_what_does_not_shrink_is_kept_as_it_is() -> None:
    noise = os.urandom(10_000)
    assert len(sealed(secret=None, compression=1).encode(DIGEST, memoryview(noise))) == 12 + 10_000
    values = np.random.default_rng(0).standard_normal(400_000).astype(np.float32).view(np.uint16)[1::2]
    packed = sealed(secret=None, compression=1).encode(DIGEST, memoryview(values.tobytes()))
    unparted = sealed(secret=None, compression=1, namespace=Namespace(model="m", dtype="fp8"))
    assert (
        packed.nbytes < 0.8 * values.nbytes and packed.nbytes < unparted.encode(DIGEST, memoryview(values.tobytes())).nbytes
    )


def test_through_a_tier(tmp_path: Path) -> None:
    """Nothing readable at rest; a changed or moved object is a miss, is counted and goes away."""
    place = ObjectAccess(url=f"file://{tmp_path / 'store'}")
    use = Use(ObjectTier(place, BLOCK, NAMESPACE, codec=sealed(compression=1)))
    keys = use.keys(6, "a prompt of ours")
    assert use.store(keys) == [Status.OK] * 6
    assert use.load(keys) == [Status.OK] * 6
    raw = RawFolder(tmp_path / "store")
    names: list[Any] = raw.frames()
    digests = {Sealed.rename(sealed(), use.tier._digester(key)).hex() for key in keys}  # type: ignore[attr-defined]
    assert {path.name for path in names} == digests
    for path in names:
        assert b"prompt" not in raw.read(path)
    raw.write(names[0], raw.read(names[1]))
    body = bytearray(raw.read(names[2]))
    body[150] ^= 1
    raw.write(names[2], bytes(body))
    assert use.load(keys).count(Status.MISS) == 2 and use.tier.stats().counters["corrupt"] == 2
    use.until(lambda: len(raw.frames()) == 4)
    use.tier.close()
    plain, other = (
        Use(ObjectTier(place, BLOCK, NAMESPACE, codec=codec)) for codec in (None, sealed(secret=Secret("env:OTHER_SECRET")))
    )
    for stranger in (plain, other):
        assert stranger.look(keys) == [Presence.MISS] * 6 and stranger.load(keys) == [Status.MISS] * 6
        stranger.tier.close()
        assert "corrupt" not in stranger.tier.stats().counters
    assert len(raw.frames()) == 4, "whoever cannot read blocks leaves them alone"


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    import zstandard

    bomb = b"\x01\x01\0\0" + (100).to_bytes(8, "little") + zstandard.compress(bytes(1 << 26))
    assert opened(sealed(secret=None, compression=1), bomb, 100) is None
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    assert opened(sealed(secret=None, compression=1), bomb[:12] + streamed, 100) is None


def test_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NO_SUCH is not set"):
        sealed(secret=Secret("env:NO_SUCH"))
    (tmp_path / "short").write_text("tooshort\n")
    with pytest.raises(ConfigError, match="holds 8 bytes") as refused:
        sealed(secret=Secret(f"file:{tmp_path / 'short'}"))
    assert "tooshort" not in str(refused.value)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none"))):
        sealed(secret=Secret(f"file:{tmp_path / 'none'}"))
    with pytest.raises(ConfigError, match="no file can have this name"):
        sealed(secret=Secret("file:/\0"))
    with pytest.raises(ConfigError, match="1 to 22"):
        sealed(compression=0)
    with pytest.raises(ConfigError, match="a secret, a compression level, or both"):
        sealed(secret=None)
    assert SECRET not in repr(Secret("env:BLOCKS_SECRET")) + repr(vars(sealed()).keys())
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r"kvloft\[encryption\]"):
        sealed()
