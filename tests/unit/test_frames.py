"""The compiled part of frames: its checksum against the xxhash package, and threads that move frames against plain files."""

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from kvloft import _frames
from kvloft.tiers.disk.files import PAGE, Slots, aligned
from kvloft.tiers.frame import HEADER_BYTES, MAGIC, check, seal

SPACE = bytes(range(32))
LENGTHS = [*range(260), 1023, 1024, 1025, 1088, 4095, 4096, 65_536, 100_003]


def key(n: int) -> bytes:
    return n.to_bytes(32, "big")


def checksum(payload: bytes | memoryview) -> int:
    return int.from_bytes(seal(SPACE, key(0), payload)[88:96], "little")  # type: ignore[arg-type]


def test_checksums_are_those_of_xxhash() -> None:
    noise = random.Random(1).randbytes(max(LENGTHS) + 8)
    for length in LENGTHS:
        for start in (0, 1, 7):
            part = memoryview(noise)[start : start + length]
            assert checksum(part) == xxhash.xxh3_64_intdigest(part), (length, start)


def test_a_header_is_laid_out_as_written_down() -> None:
    header = seal(SPACE, key(7), memoryview(b"payload"))
    assert len(header) == HEADER_BYTES and header[:8] == MAGIC
    assert header[8:16] == b"\1\0\x68\0\0\0\0\0" and header[16:48] == SPACE and header[48:80] == key(7)
    assert int.from_bytes(header[80:88], "little") == 7
    assert int.from_bytes(header[96:], "little") == xxhash.xxh3_64_intdigest(header[:96])


@pytest.mark.parametrize("name", [b"short", bytes(33), "x" * 32, None])
def test_names_of_another_size_or_kind_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        seal(name, key(0), memoryview(b""))
    with pytest.raises(ValueError, match="32 bytes"):
        check(bytes(HEADER_BYTES), memoryview(b""), SPACE, name)


# Moving.


@pytest.fixture(name="mover")
def _mover() -> Iterator[_frames.Mover[Any]]:
    mover: _frames.Mover[Any] = _frames.Mover(4)
    yield mover
    mover.close()


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Iterator[Callable[..., int]]:
    opened: list[int] = []

    def make(name: str = "slots", flags: int = 0) -> int:
        opened.append(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT | flags))
        return opened[-1]

    yield make
    for fd in opened:
        os.close(fd)


def slots(payloads: list[memoryview], *, first: int = 0, direct: bool = False) -> Slots:
    length = payloads[0].nbytes
    stride = PAGE + -(-length // PAGE) * PAGE
    return Slots(SPACE, [key(first + n) for n in range(len(payloads))], payloads, PAGE, stride, direct)


def noise(length: int, seed: int = 0) -> memoryview:
    """Bytes at a page's start, as a host arena has them."""
    memory = aligned(max(length, 1))[:length]
    memory[:] = random.Random(seed).randbytes(length)
    return memory


def move(mover: _frames.Mover[Any], fd: int, what: Slots, *, writes: bool, at: int = 0, **named: Any) -> tuple[Any, int]:
    if writes:
        notes = named.get("notes", ())
        mover.write("token", fd, what, at, named.get("index", -1), notes, named.get("first", 0), named.get("sync", False))
    else:
        mover.read("token", fd, what, at)
    ((token, how, error),) = mover.wait(writes)
    assert token == "token"
    return how, error


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4096, 5000, 65_536, 65_537])
def test_what_was_written_is_read(mover: _frames.Mover[Any], file: Callable[..., int], length: int, direct: bool) -> None:
    fd = file(flags=os.O_DIRECT if direct else 0)
    payloads = [noise(length, n) for n in range(3)]
    what = slots(payloads, direct=direct)
    assert move(mover, fd, what, writes=True, at=what.stride) == (what.nbytes, 0)
    content = os.pread(file(), what.nbytes, what.stride)
    for n, payload in enumerate(payloads):
        slot = content[n * what.stride : (n + 1) * what.stride]
        assert slot[:HEADER_BYTES] == seal(SPACE, key(n), payload)
        assert slot[PAGE : PAGE + length] == bytes(payload)
        assert not any(slot[HEADER_BYTES:PAGE]) and not any(slot[PAGE + length :])
    back = slots([aligned(max(length, 1))[:length] for _ in payloads], direct=direct)
    assert move(mover, fd, back, writes=False, at=what.stride) == (bytes(3), 0)
    assert [bytes(each) for each in back.payloads] == [bytes(each) for each in payloads]


def test_direct_takes_buffers_from_anywhere(mover: _frames.Mover[Any], file: Callable[..., int]) -> None:
    fd = file(flags=os.O_DIRECT)
    payload = memoryview(bytearray(8192 + 1))[1:]
    payload[:] = noise(8192)
    assert move(mover, fd, slots([payload], direct=True), writes=True) == (PAGE + 8192, 0)
    into = memoryview(bytearray(8192 + 3))[3:]
    assert move(mover, fd, slots([into], direct=True), writes=False) == (b"\0", 0)
    assert into == payload
    os.truncate(fd, 4096)
    into[:] = bytes(8192)
    assert move(mover, fd, slots([into], direct=True), writes=False) == (b"", 0)
    assert not any(into), "what did not come whole must not look as if it had"


def test_each_frame_is_judged_alone(mover: _frames.Mover[Any], file: Callable[..., int]) -> None:
    fd = file()
    what = slots([noise(4096, n) for n in range(4)])
    move(mover, fd, what, writes=True)
    os.pwrite(fd, b"?", what.stride + PAGE)
    os.pwrite(fd, b"?", 2 * what.stride)
    back = slots([aligned(4096) for _ in range(4)])
    assert move(mover, fd, back, writes=False) == (bytes([0, 8, 2, 0]), 0)
    assert move(mover, fd, back._replace(fingerprint=bytes(32)), writes=False) == (bytes([5, 5, 2, 5]), 0)
    os.truncate(fd, 2 * what.stride + PAGE)
    assert move(mover, fd, back, writes=False) == (bytes([0, 8]), 0)
    os.truncate(fd, 0)
    assert move(mover, fd, back, writes=False) == (b"", 0)


def test_notes_go_before_and_after(mover: _frames.Mover[Any], file: Callable[..., int], tmp_path: Path) -> None:
    fd, index = file(), file("index")
    what = slots([noise(4096)])
    notes = ((8, b"cleared!"), (8, b"record"), (0, b"count"))
    for sync in (False, True):
        os.truncate(index, 0)
        how = move(mover, fd, what, writes=True, index=index, notes=notes, first=1, sync=sync)
        assert how == (what.nbytes, 0)
        assert (tmp_path / "index").read_bytes() == b"count\0\0\0recordd!"


def test_frames_that_failed_have_no_record(mover: _frames.Mover[Any], file: Callable[..., int], tmp_path: Path) -> None:
    index, what = file("index"), slots([noise(4096)])
    full = os.open("/dev/full", os.O_RDWR)
    notes = ((0, b"old"), (0, b"new"))
    assert move(mover, full, what, writes=True, index=index, notes=notes, first=1) == (-1, errno.ENOSPC)
    assert (tmp_path / "index").read_bytes() == b"old"
    assert move(mover, file(), what, writes=True, index=full, notes=notes)[1] == errno.ENOSPC
    assert move(mover, file(), what, writes=True, index=full, notes=notes, first=2)[1] == errno.ENOSPC
    os.close(full)
    for writes in (True, False):
        assert move(mover, 1 << 20, what, writes=writes) == (-1, errno.EBADF)
        assert move(mover, file(), what, writes=writes, at=-1)[1] == errno.EINVAL


def test_what_does_not_fit_is_refused_at_once(mover: _frames.Mover[Any], file: Callable[..., int]) -> None:
    fd, sound = file(), slots([noise(4096)])
    too_many = slots([noise(1)] * 257)
    for wrong, words in (
        (sound._replace(digests=[]), "one payload"),
        (sound._replace(digests=[], payloads=[]), "1 to 256"),
        (too_many, "1 to 256"),
        (sound._replace(digests=[b"short"]), "32 bytes"),
        (sound._replace(fingerprint=b""), "32 bytes"),
        (sound._replace(page=64), "pages of"),
        (sound._replace(stride=PAGE), "no payload of a slot"),
        (sound._replace(stride=1 << 20), "no payload of a slot"),
    ):
        for writes in (True, False):
            with pytest.raises(ValueError, match=words):
                move(mover, fd, wrong, writes=writes)
    with pytest.raises(ValueError, match="notes"):
        move(mover, fd, sound, writes=True, notes=((0, b""),), first=2)
    with pytest.raises(TypeError):
        move(mover, fd, sound, writes=True, notes=((0, 7),))
    with pytest.raises(BufferError):
        move(mover, fd, sound._replace(payloads=[memoryview(bytes(4096))]), writes=False)
    with pytest.raises(ValueError, match="threads"):
        _frames.Mover(0)


def test_nothing_is_held_longer_than_needed(mover: _frames.Mover[Any], file: Callable[..., int]) -> None:
    fd = file()
    payload, token, digest = bytearray(4096), object(), b"%032d" % 5
    before = [sys.getrefcount(each) for each in (payload, token, digest)]
    for writes in (True, False) * 20:
        what = Slots(SPACE, [digest], [memoryview(payload)], PAGE, 2 * PAGE, False)
        if writes:
            mover.write(token, fd, what, 0, fd, ((1 << 20, b"note"),), 0, False)
        else:
            mover.read(token, fd, what, 0)
        assert mover.wait(writes)[0][2] == 0
        with pytest.raises(ValueError, match="32 bytes"):
            mover.read(token, fd, what._replace(digests=[digest, b""], payloads=[memoryview(payload)] * 2), 0)
        del what
    payload.append(0)  # raises BufferError while anybody holds it
    assert [sys.getrefcount(each) for each in (payload, token, digest)] == before


def test_a_wait_ends_by_a_wake(mover: _frames.Mover[Any]) -> None:
    mover.wake(True)
    assert mover.wait(True) == []
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.append(mover.wait(False)))
    waiting.start()
    mover.wake(True)
    mover.wake(False)
    waiting.join(20)
    assert heard == [[]]


def test_many_moves_at_once(file: Callable[..., int]) -> None:
    """Writers and readers of different slots; every move ends once, with its own content."""
    fd, count = file(), 200
    mover: _frames.Mover[int] = _frames.Mover(8)
    payloads = [noise(8192, n) for n in range(count)]
    ended: dict[int, Any] = {}
    for writes in (True, False):
        into = payloads if writes else [aligned(8192) for _ in range(count)]
        for n in range(count):
            what = slots([into[n]], first=n)
            if writes:
                mover.write(n, fd, what, n * what.stride, fd, (), 0, False)
            else:
                mover.read(n, fd, what, n * what.stride)
        ended.clear()
        while len(ended) < count:
            for token, how, error in mover.wait(writes):
                assert token not in ended and not error
                ended[token] = how
        assert set(ended.values()) == {PAGE + 8192 if writes else b"\0"}
        assert into == payloads
    mover.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("writes", [True, False])
def test_neither_reads_nor_writes_starve(file: Callable[..., int], threads: int, writes: bool) -> None:
    """A move ends, though those of the other kind never run out."""
    fd = file()
    mover: _frames.Mover[int] = _frames.Mover(threads)
    one, many = slots([noise(1 << 20)]), slots([noise(1 << 20)])
    move(mover, fd, one, writes=True)

    def start(what: Slots, writes: bool) -> None:
        if writes:
            mover.write(0, fd, what, 0, fd, (), 0, False)
        else:
            mover.read(0, fd, what, 0)

    ended = threading.Event()
    waiting = threading.Thread(target=lambda: mover.wait(writes) and ended.set())
    waiting.start()
    for _ in range(200):
        start(many, not writes)
    start(one, writes)
    count = 0
    while not ended.is_set() and count < 4000:
        for _ in mover.wait(not writes):
            start(many, not writes)
            count += 1
    assert ended.is_set(), f"{count} others went first"
    waiting.join()
    mover.close()


def test_a_closed_mover_has_finished_and_says_so(file: Callable[..., int], tmp_path: Path) -> None:
    fd, mover = file(), _frames.Mover[int](2)
    what = slots([noise(4096)])
    for n in range(20):
        mover.write(n, fd, what, n * what.stride, fd, (), 0, False)
    mover.close()
    mover.close()
    assert (tmp_path / "slots").stat().st_size == 20 * what.nbytes
    for call in (lambda: mover.wake(True), lambda: mover.wait(True), lambda: mover.read(1, fd, what, 0)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_closing_ends_what_waits_and_what_has_just_begun(mover: _frames.Mover[Any], file: Callable[..., int]) -> None:
    heard: list[Any] = []

    def wait(writes: bool) -> None:
        try:
            heard.append(mover.wait(writes))
        except ValueError:  # it came too late
            heard.append([])

    waiting = [threading.Thread(target=wait, args=(n % 2 == 0,)) for n in range(6)]
    closing = [threading.Thread(target=mover.close) for _ in range(2)]

    class Digests:
        """Asked for what to move, it closes the mover."""

        def __iter__(self) -> Iterator[bytes]:
            for thread in closing:
                thread.start()
            for thread in closing:
                thread.join(20)
            return iter([key(0)])

    for thread in waiting:
        thread.start()
    with pytest.raises(ValueError, match="closed"):
        mover.read("token", file(), slots([noise(4096)])._replace(digests=Digests()), 0)  # type: ignore[arg-type]
    for thread in waiting:
        thread.join(20)
    assert heard == [[]] * 6


def test_a_forked_child_lets_the_mover_alone(mover: _frames.Mover[Any]) -> None:
    child = os.fork()
    if not child:
        try:
            mover.close()
            mover.wake(True)
        except ValueError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    mover.wake(True)
    assert mover.wait(True) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may map")
def test_where_memory_runs_out_a_move_fails_and_the_next_does_not(tmp_path: Path) -> None:
    program = """
import errno, os, resource, sys
from kvloft._frames import Mover
mover = Mover(1)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
payload = bytearray(40 << 20)
slots = bytes(32), [bytes(32)], [memoryview(payload)[1:]], 4096, 4096 + len(payload), True
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), resource.RLIM_INFINITY))
mover.write("token", fd, slots, 0, fd, (), 0, False)
assert mover.wait(True) == [("token", -1, errno.ENOMEM)]
try:
    Mover(64)
except RuntimeError as error:
    assert "of 64 threads" in str(error)
else:
    raise SystemExit("there was memory")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
mover.write("token", fd, slots, 0, fd, (), 0, False)
assert mover.wait(True) == [("token", slots[4], 0)]
mover.close()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "slots")], check=True)


# Locks.


def test_locks_on_many_bytes(file: Callable[..., int]) -> None:
    one, other = file(), file()
    assert _frames.lock_bytes(one, [1, 5, 1 << 60], True) == [True] * 3
    assert _frames.lock_bytes(one, [5], True) == [True]
    assert _frames.lock_bytes(other, [0, 1, 2, 5, 1 << 60], True) == [True, False, True, False, False]
    assert _frames.lock_bytes(one, [1, 7], False) == [True, True]
    assert _frames.lock_bytes(other, [1, 5], True) == [True, False]
    assert _frames.lock_bytes(one, [], True) == []


def test_locks_that_cannot_be(file: Callable[..., int]) -> None:
    with pytest.raises(OSError, match="Bad file"):
        _frames.lock_bytes(1 << 20, [1], True)
    with pytest.raises(OSError, match="Invalid"):
        _frames.lock_bytes(file(), [-1], True)
    with pytest.raises(OverflowError):
        _frames.lock_bytes(file(), [1 << 70], True)
    with pytest.raises(TypeError):
        _frames.lock_bytes(file(), ["1"], True)  # type: ignore[list-item]
