"""Several tiers and processes at one directory: shares, hand-over, removal of what another owns, death and fork."""

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from test_disk_house import BLOCK, OTHER, SPACE, Disk, names

from disk_medium import BrittleFiles, RawDisk
from kvloft.tiers import Status
from kvloft.tiers.frame import HEADER_BYTES

OK, MISS, DROPPED = Status.OK, Status.MISS, Status.DROPPED
CAPACITY = 2 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    opened: list[Disk] = []

    def open_disk(**settings: Any) -> Disk:
        opened.append(Disk(tmp_path / "disk", CAPACITY, **settings))
        return opened[-1].open()

    yield open_disk
    for one in opened:
        one.tier.close()


def fill(one: Disk, name: str) -> None:
    for n in range(CAPACITY // BLOCK // 8 + 8):
        one.store(names(8, f"{name} {n}"))


@pytest.mark.parametrize("space", [SPACE, OTHER], ids=["same namespace", "another"])
def test_a_newcomer_gets_its_share_of_a_full_directory(tmp_path: Path, disk: Callable[..., Disk], space: Any) -> None:
    one = disk()
    fill(one, "one")
    other = disk(space=space)
    rounds = iter(range(10**6))
    other.until(lambda: other.store(names(8, f"other {next(rounds)}")) == [OK] * 8)
    assert RawDisk(tmp_path / "disk").charged() <= CAPACITY
    assert one.count("handed_over") >= 1
    assert one.store(names(8, "one again")) == [OK] * 8
    share = sum(segment.owned for segment in other.tier._catalog.segments.values())
    for n in range(200):
        other.store(names(8, f"much {n}"))
        one.store(names(8, f"too {n}"))
    assert RawDisk(tmp_path / "disk").charged() <= CAPACITY
    kept = sum(segment.owned for segment in one.tier._catalog.segments.values())
    assert kept >= 1 and share >= 1


def test_what_nobody_uses_makes_room(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk()
    fill(one, "one")
    one.tier.close()
    other = disk(space=OTHER)
    fill(other, "other")
    assert other.tier.stats().blocks * (BLOCK + 4096) > CAPACITY // 2
    assert not (tmp_path / "disk" / SPACE.name).exists()
    assert RawDisk(tmp_path / "disk").charged() <= CAPACITY


def test_the_segments_of_one_who_left_are_taken_over(disk: Callable[..., Disk]) -> None:
    one, other = disk(), disk()
    keys = names(20)
    one.store(keys)
    other.until(lambda: other.held(keys) == 20)
    one.tier.close()
    other.until(lambda: all(segment.owned for segment in other.tier._catalog.segments.values()))
    other.until(lambda: other.load(keys) == [OK] * 20)
    fill(other, "other")
    assert other.count("evicted") > 0 and other.held(keys) < 20


def test_what_another_owns_can_be_removed(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one, other = disk(), disk()
    keys = names(6)
    one.store(keys)
    other.until(lambda: other.held(keys) == 6)
    other.tier.remove(keys[:2])
    assert other.held(keys) == 4
    one.until(lambda: one.held(keys) == 4)
    one.tier.close()
    other.tier.close()
    assert len(RawDisk(tmp_path / "disk").frames()) == 4
    assert disk().load(keys) == [MISS] * 2 + [OK] * 4


def test_a_removal_is_not_lost_when_its_owner_never_notices(disk: Callable[..., Disk]) -> None:
    one, other = disk(tick=1000), disk()
    keys = names(6)
    one.store(keys)
    other.until(lambda: other.held(keys) == 6)
    other.tier.remove(keys[:2])
    assert other.tier.drain(10)
    other.tier.close()
    one.tier._upkeep._learn_heat = one.tier._upkeep._write_heat = lambda: None
    one.tier.close()
    assert disk().load(keys) == [MISS] * 2 + [OK] * 4


def test_a_removal_is_not_lost_when_its_owner_ends(disk: Callable[..., Disk]) -> None:
    one, other = disk(tick=1000), disk()
    keys = names(6)
    one.store(keys)
    other.until(lambda: other.held(keys) == 6)
    other.tier.remove(keys[:2])
    other.tier.close()
    one.tier.close()
    assert disk().load(keys) == [MISS] * 2 + [OK] * 4


def test_what_another_finds_damaged_its_owner_removes(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one, other = disk(), disk()
    keys = names(6)
    one.store(keys)
    other.until(lambda: other.held(keys) == 6)
    raw = RawDisk(tmp_path / "disk")
    for name in raw.frames():
        frame = bytearray(raw.read(name))
        frame[HEADER_BYTES + 77] ^= 1
        raw.write(name, bytes(frame))
    assert other.load(keys) == [MISS] * 6
    assert other.count("corrupt") == 6
    one.until(lambda: one.held(keys) == 0)
    assert one.store(keys) == [OK] * 6
    other.until(lambda: other.held(keys) == 6)
    assert other.load(keys) == [OK] * 6


def test_what_another_uses_stays(disk: Callable[..., Disk]) -> None:
    one, other = disk(), disk()
    loved = names(4, "loved")
    one.store(loved)
    other.until(lambda: other.held(loved) == 4)
    segment = next(segment for segment in one.tier._catalog.segments.values() if segment.owned)
    segment.used[:] -= 1000
    for n in range(CAPACITY // BLOCK // 8 + 8):
        one.store(names(8, f"round {n}"))
        assert other.load(loved) == [OK] * 4
        one.until(lambda n=n: (segment.hits > n).sum() == 4)


def _store_and_wait(place: str, ready: Any) -> None:
    one = Disk(Path(place), CAPACITY).open()
    one.store(names(10))
    one.tier._space.lock_file.claim([one.tier._digest(b"claimed")])
    one.tier._space.lock_file.want(True)
    ready.set()
    signal.pause()


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    spaces = get_context("spawn")
    ready = spaces.Event()
    child = spaces.Process(target=_store_and_wait, args=(str(tmp_path / "disk"), ready))
    child.start()
    assert ready.wait(60)
    one = disk()
    assert one.tier._space.lock_file.members() == 2
    assert one.store([b"claimed"]) == [DROPPED]
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert one.tier._space.lock_file.members() == 1 and not one.tier._space.lock_file.wanted()
    assert one.store([b"claimed"]) == [OK]
    one.until(lambda: all(segment.owned for segment in one.tier._catalog.segments.values()))
    one.until(lambda: one.load(names(10)) == [OK] * 10)


def test_a_forked_child_holds_no_lock(disk: Callable[..., Disk]) -> None:
    one = disk()
    one.store(names(4))
    forked, tell = os.pipe()
    child = os.fork()
    if not child:
        # What is done at a fork is done by now.
        os.write(tell, b".")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(forked, 1) == b"."
        one.tier.close()
        other = disk()
        assert other.tier._space.lock_file.members() == 1
        assert all(segment.owned for segment in other.tier._catalog.segments.values())
        assert other.load(names(4)) == [OK] * 4
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(forked)
        os.close(tell)


def test_a_forked_child_waits_for_nothing(disk: Callable[..., Disk]) -> None:
    """Neither for answers, which only the parent gets, nor for a lock that another thread had."""
    files = BrittleFiles()
    one = disk(files=files)
    files.set("hang")
    one.tier.submit_store(1, names(1), [memoryview(bytearray(one.content(names(1)[0])))])
    with one.tier._lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            try:
                one.tier.drain()
                one.tier.stats()
                one.tier.touch(names(1))
                one.tier.remove(names(1))
                one.tier.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    files.set(None)
    assert one.answer() == [OK]
