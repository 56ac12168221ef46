"""The disk tier's housekeeping: what lies on the medium, what is bad there, and what happens when the medium does."""

import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from disk_medium import BrittleFiles, RawDisk
from kvloft.errors import ConfigError, TierError
from kvloft.keys import Namespace, digest_key
from kvloft.policies import BUILTIN, LRU, Offer
from kvloft.tiers import Presence, Status
from kvloft.tiers.disk import DiskTier, Files
from kvloft.tiers.disk.files import Ended, Mover, Slots
from kvloft.troubles import PAUSE, Troubles

BLOCK = 8192
SPACE = Namespace(model="house")
OTHER = Namespace(model="another house")
OK, MISS, DROPPED, FAILED = Status.OK, Status.MISS, Status.DROPPED, Status.FAILED


class Disk:
    """A tier, and the few things that tests do with it."""

    def __init__(self, place: Path, capacity: int = 1 << 20, space: Namespace = SPACE, **settings: Any) -> None:
        settings.setdefault("tick", 0.01)
        self.tier = DiskTier(place, capacity, BLOCK, space, **settings)
        self.job = 0

    def content(self, key: bytes) -> bytes:
        return key.ljust(64, b".") * (BLOCK // 64)

    def store(self, keys: Sequence[bytes]) -> list[Status]:
        self.job += 1
        self.tier.submit_store(self.job, keys, [memoryview(bytearray(self.content(key))) for key in keys])
        return self.answer()

    def load(self, keys: Sequence[bytes]) -> list[Status]:
        self.job += 1
        buffers = [memoryview(bytearray(BLOCK)) for _ in keys]
        self.tier.submit_load(self.job, keys, buffers)
        statuses = self.answer()
        assert all(bytes(b) == self.content(k) for k, b, s in zip(keys, buffers, statuses, strict=True) if s is OK)
        return statuses

    def answer(self) -> list[Status]:
        assert self.tier.drain(20)
        (answer,) = self.tier.poll()
        return list(answer.statuses)

    def held(self, keys: Sequence[bytes]) -> int:
        return self.tier.lookup(keys).count(Presence.HIT)

    def count(self, counter: str) -> int:
        return self.tier.stats().counters.get(counter, 0)

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end, "it never came about"
            time.sleep(0.003)

    def open(self) -> "Disk":
        self.until(lambda: Presence.UNKNOWN not in self.tier.lookup([b"anything"]))
        return self


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Opens tiers in one directory, and closes them at the end."""
    opened: list[Disk] = []

    def open_disk(capacity: int = 1 << 20, space: Namespace = SPACE, **settings: Any) -> Disk:
        opened.append(Disk(tmp_path / "disk", capacity, space, **settings))
        return opened[-1].open()

    yield open_disk
    for one in opened:
        one.tier.close()


def names(n: int, name: str = "block") -> list[bytes]:
    return [f"{name} {at}".encode() for at in range(n)]


# What lies there.


def test_nobody_else_may_read(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    os.umask(0o000)
    try:
        disk().store(names(3))
    finally:
        os.umask(0o022)
    for path in [tmp_path / "disk", *(tmp_path / "disk").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_keys_are_seen_only_as_digests(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk()
    one.tier.submit_store(1, [b"a very secret key"], [memoryview(bytearray(BLOCK))])
    one.answer()
    one.tier.close()
    files = [path for path in (tmp_path / "disk").rglob("*") if path.is_file()]
    assert not any(b"a very secret key" in path.read_bytes() or "secret" in path.name for path in files)
    assert any(digest_key(SPACE, b"a very secret key") in path.read_bytes() for path in files)


def test_many_blocks_take_few_files(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk(16 << 20)
    for n in range(20):
        one.store(names(60, f"round {n}"))
    assert one.tier.stats().blocks > 1000
    assert len(list((tmp_path / "disk").rglob("*"))) < 150


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        DiskTier(tmp_path, 1 << 20, 0, SPACE, threads=0, ttl=-1)
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="no room for one block"):
        DiskTier(tmp_path, 65536, BLOCK, SPACE)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TierError, match="cannot be made a directory"):
        DiskTier(tmp_path / "file", 1 << 20, BLOCK, SPACE)


# Bad files.


def _spoil(how: str, data: Path, index: Path) -> None:
    if how == "data cut":
        os.truncate(data, data.stat().st_size - 1)
    elif how == "data grown":
        os.truncate(data, data.stat().st_size + 1)
    elif how == "data empty":
        os.truncate(data, 0)
    elif how == "data missing":
        data.unlink()
    elif how == "index cut":
        os.truncate(index, 5000)
    elif how == "index empty":
        os.truncate(index, 0)
    elif how == "index grown":
        os.truncate(index, index.stat().st_size + 4096)
    elif how == "index foreign":
        index.write_bytes(b"\x7fELF" + bytes(index.stat().st_size - 4))
    elif how == "index of another version":
        _patch(index, 8, b"\x02\x00")
    elif how == "index of another namespace":
        _patch(index, 16, bytes(32))
    elif how == "index header damaged":
        _patch(index, 64, b"\xff")


def _patch(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    "how",
    ["data cut", "data grown", "data empty", "data missing", "index cut", "index empty", "index grown", "index foreign",
     "index of another version", "index of another namespace", "index header damaged"],
)  # fmt: skip
def test_a_bad_file_costs_only_its_own_blocks(tmp_path: Path, disk: Callable[..., Disk], how: str) -> None:
    one = disk()
    keys = names(20)
    one.store(keys)
    one.tier.close()
    raw = RawDisk(tmp_path / "disk")
    assert len(raw.data()) >= 2
    bad = raw.data()[0]
    _spoil(how, bad, bad.with_suffix(".index"))
    one = disk()
    spared = len(raw.frames())
    assert 0 < spared < 20
    assert sorted(one.load(keys), key=str).count(OK) == spared
    assert one.count("unfit") == 1
    assert not bad.exists() and not bad.with_suffix(".index").exists()
    assert one.store(keys) == [OK] * 20 and one.load(keys) == [OK] * 20


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    disk().tier.close()
    home = tmp_path / "disk" / SPACE.name
    leftovers = [home / "0123456789abcdef.data", home / "fedcba9876543210.data", home / "fedcba9876543210.tmp"]
    theirs = [home / "notes.data", tmp_path / "disk" / "0123456789abcdef.tmp", home / "x.tmp"]
    for path in [*leftovers, *theirs]:
        path.write_bytes(b"?" * 5000)
    disk().store(names(1))
    assert not any(path.exists() for path in leftovers)
    assert all(path.exists() for path in theirs)


def test_files_deleted_while_in_use(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk()
    keys = names(20)
    one.store(keys)
    raw = RawDisk(tmp_path / "disk")
    assert len(raw.data()) >= 2
    raw.data()[0].unlink()
    raw.indices()[-1].unlink()
    assert FAILED not in one.load(keys)
    one.until(lambda: one.count("lost") == 2)
    assert one.store(keys) == [OK] * 20 and one.load(keys) == [OK] * 20


def test_the_whole_directory_deleted_while_in_use(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk()
    keys = names(20)
    one.store(keys)
    shutil.rmtree(tmp_path / "disk")
    one.until(lambda: one.held(keys) == 0 and (tmp_path / "disk" / "kvloft.lock").exists())
    one.until(lambda: one.store(keys) == [OK] * 20)
    assert one.load(keys) == [OK] * 20
    one.tier.close()
    assert disk().load(keys) == [OK] * 20


def test_a_file_cut_while_in_use(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk(tick=30)
    keys = names(8)
    one.store(keys)
    for path in RawDisk(tmp_path / "disk").data():
        os.truncate(path, 4096 * 3)
    statuses = one.load(keys)
    assert set(statuses) <= {OK, MISS} and MISS in statuses
    assert one.count("corrupt") == statuses.count(MISS)


@pytest.mark.parametrize("policy", ["lru", "hdi"])
def test_a_block_whose_record_is_damaged_too(tmp_path: Path, disk: Callable[..., Disk], policy: str) -> None:
    one = disk(policy=policy, tick=30)
    keys, raw = names(8), RawDisk(tmp_path / "disk")
    one.store(keys)
    for path in [*raw.data(), *raw.indices()]:
        with path.open("r+b") as file:
            file.seek(4096 if path in raw.indices() else 0)
            file.write(bytes(4096 if path in raw.indices() else path.stat().st_size))
    assert one.load(keys) == [MISS] * 8
    assert one.count("corrupt") == 8
    assert one.store(keys) == one.load(keys) == [OK] * 8
    one.tier.remove(keys)
    assert one.held(keys) == one.tier._catalog.ours == one.tier._catalog.policy.residents() == 0


# A bad medium.


class OneBadBlock(Files):
    """Reads and writes that touch one place of any file of slots fail."""

    def __init__(self, at: int) -> None:
        self.at = at

    def _check(self, slots: Slots, offset: int) -> None:
        if offset <= self.at < offset + slots.nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read_slots(self, mover: Mover, ended: Ended, fd: int, slots: Slots, offset: int) -> None:
        self._check(slots, offset)
        super().read_slots(mover, ended, fd, slots, offset)

    def write_slots(self, mover: Mover, ended: Ended, fd: int, slots: Slots, offset: int, *rest: Any, sync: bool) -> None:
        self._check(slots, offset)
        super().write_slots(mover, ended, fd, slots, offset, *rest, sync=sync)


def test_one_bad_sector_costs_one_block_and_is_not_used_again(disk: Callable[..., Disk]) -> None:
    one = disk(files=OneBadBlock(3 * (BLOCK + 4096)))
    keys = names(6)
    assert one.store(keys) == [OK, OK, OK, FAILED, OK, OK]
    assert one.load(keys) == [OK, OK, OK, MISS, OK, OK]
    broken = one.count("broken_slots")
    assert broken >= 1
    for n in range(40):
        one.store(names(6, f"round {n}"))
    segments = one.count("broken_slots")
    for n in range(40):
        assert set(one.store(names(6, f"more {n}"))) == {OK}
    assert one.count("broken_slots") == segments
    one.tier.close()
    one = disk(files=OneBadBlock(3 * (BLOCK + 4096)))
    for n in range(40):
        assert set(one.store(names(6, f"again {n}"))) == {OK}


def test_a_block_that_cannot_be_read_fails_alone(disk: Callable[..., Disk]) -> None:
    keys = names(6)
    one = disk()
    one.store(keys)
    one.tier.close()
    one = disk(files=OneBadBlock(2 * (BLOCK + 4096)))
    assert one.load(keys) == [OK, OK, FAILED, OK, OK, OK]
    assert one.load(keys) == [OK, OK, MISS, OK, OK, OK]


class Grudging(Files):
    """Refuses what it is told to."""

    def __init__(self, **refusals: int) -> None:
        self.refusals = refusals

    def _refuse(self, what: str) -> None:
        if what in self.refusals:
            raise OSError(self.refusals[what], os.strerror(self.refusals[what]))

    def allocate(self, fd: int, size: int) -> None:
        self._refuse("allocate")
        super().allocate(fd, size)

    def unlink(self, path: str) -> None:
        self._refuse("unlink")
        super().unlink(path)

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            self._refuse("open")
        return super().open(path, flags)

    def free_bytes(self, path: str) -> int:
        return self.refusals.get("free", super().free_bytes(path))


def test_a_full_file_system_costs_no_block_and_heals(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    files = Grudging()
    one = disk(files=files)
    kept = names(4, "kept")
    one.store(kept)
    files.refusals["allocate"] = errno.ENOSPC
    statuses = [status for n in range(20) for status in one.store(names(4, f"round {n}"))]
    assert set(statuses) <= {OK, DROPPED} and statuses[-4:] == [OK] * 4
    assert one.count("no_space") >= 1 and one.count("evicted") > 0
    before = one.tier.stats().blocks
    assert not list((tmp_path / "disk").rglob("*.tmp"))
    del files.refusals["allocate"]
    one.until(lambda: one.store(names(4, str(time.monotonic()))) == [OK] * 4 and one.tier.stats().blocks > before)


def test_an_empty_tier_on_a_full_file_system_drops(disk: Callable[..., Disk]) -> None:
    one = disk(files=Grudging(allocate=errno.ENOSPC))
    assert one.store(names(4)) == [DROPPED] * 4
    assert one.load(names(4)) == [MISS] * 4


def test_a_read_only_directory_is_read(disk: Callable[..., Disk]) -> None:
    keys = names(4)
    one = disk()
    one.store(keys)
    one.tier.close()
    one = disk(files=Grudging(open=errno.EROFS))
    assert one.tier.read_only
    assert one.load(keys) == [OK] * 4
    assert one.store([*keys, *names(2, "new")]) == [OK] * 4 + [DROPPED] * 2


def test_a_file_that_cannot_be_removed_stops_nothing(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk(1 << 20, OTHER)
    for n in range(30):
        one.store(names(4, f"old {n}"))
    one.tier.close()
    one = disk(2 << 20, files=Grudging(unlink=errno.EPERM))
    for n in range(60):
        assert set(one.store(names(4, f"round {n}"))) == {OK}
        assert RawDisk(tmp_path / "disk").charged() <= 2 << 20
    assert one.load(names(4, "round 59")) == [OK] * 4


# What the log is told.


def test_trouble_of_a_kind_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 1.0, PAUSE - 1, PAUSE - 1, PAUSE])
    troubles = Troubles("disk tier /place", logging.getLogger("kvloft.tiers"), lambda: next(times))
    for kind in ("reading", "reading", "reading", "writing", "reading"):
        troubles.tell(kind, "bad sector")
    assert [record.getMessage() for record in caplog.records] == [
        "disk tier /place: reading: bad sector",
        "disk tier /place: writing: bad sector",
        "disk tier /place: reading: bad sector (2 more since the last of these)",
    ]


def test_a_medium_that_fails_is_told_by_kind(
    tmp_path: Path, disk: Callable[..., Disk], caplog: pytest.LogCaptureFixture
) -> None:
    files = BrittleFiles()
    one = disk(files=files)
    assert one.store(names(2)) == [OK] * 2 and not caplog.records
    files.set("read")
    assert one.load(names(2)) == [FAILED] * 2
    files.set("write")
    assert one.store(names(4, "more")) == [FAILED] * 4
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"disk tier {tmp_path}/disk: {what} a block: [Errno 5] Input/output error" for what in ("reading", "writing")
    ]


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ({"allocate": errno.ENOSPC}, "No space left"),
        ({"unlink": errno.EPERM}, "deleting: "),
        ({"open": errno.EROFS}, "none is stored"),
    ],
)
def test_a_file_system_that_refuses_is_told(
    disk: Callable[..., Disk], caplog: pytest.LogCaptureFixture, refusal: dict[str, int], words: str
) -> None:
    old = disk(1 << 20, OTHER)
    old.store(names(4))
    old.tier.close()
    disk().tier.close()
    one = disk(1 << 18, files=Grudging(**refusal))
    one.store(names(20))
    assert sum(words in record.getMessage() for record in caplog.records) == 1


def test_housekeeping_that_fails_is_told(
    disk: Callable[..., Disk], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = disk()
    monkeypatch.setattr(one.tier._catalog, "expired", lambda *_: 1 / 0)
    one.until(lambda: one.count("upkeep_failed") > 2)
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.endswith("upkeep, expire: division by zero")


# Bounds.


def test_a_smaller_capacity_is_kept_after_a_restart(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    one = disk(4 << 20)
    for n in range(50):
        one.store(names(6, f"round {n}"))
    one.tier.close()
    assert RawDisk(tmp_path / "disk").charged() > 3 << 20
    one = disk(1 << 20)
    assert RawDisk(tmp_path / "disk").charged() <= 1 << 20
    assert 0 < one.held([key for n in range(50) for key in names(6, f"round {n}")]) < 150
    assert one.load(names(6, "round 49")) == [OK] * 6


def test_free_space_is_left_to_others(tmp_path: Path, disk: Callable[..., Disk]) -> None:
    files = Grudging(free=1 << 30)
    one = disk(files=files, min_free_bytes=1 << 20)
    one.store(names(20))
    before = RawDisk(tmp_path / "disk").charged()
    files.refusals["free"] = (1 << 20) - 1
    one.until(lambda: one.count("shrunk") >= 1)
    files.refusals["free"] = 1 << 20
    assert RawDisk(tmp_path / "disk").charged() < before
    assert FAILED not in one.load(names(20)) and FAILED not in one.store(names(20, "new"))


def test_blocks_have_an_age_limit(disk: Callable[..., Disk]) -> None:
    keys = names(6)
    one = disk(tick=0.01)
    one.store(keys)
    one.tier.close()
    one = disk(ttl=3600)
    assert one.load(keys) == [OK] * 6
    one.tier.close()
    one = disk(ttl=1e-6)
    assert one.held(keys) == 0 and one.load(keys) == [MISS] * 6
    one.until(lambda: one.count("expired") == 6)
    assert one.tier.stats().blocks == 0
    one.tier.close()
    one = disk(ttl=3600)
    assert one.store(keys) == [OK] * 6 and one.load(keys) == [OK] * 6


def test_recency_outlives_a_restart(disk: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    one = disk()
    old, loved = names(5, "old"), names(5, "loved")
    one.store(loved)
    one.store(old)
    later = time.time() + 100
    monkeypatch.setattr(time, "time", lambda: later)
    one.load(loved)
    one.tier.close()
    one = disk()
    n = 0
    while one.held(old):
        one.store(names(1, f"round {n}"))
        n += 1
    assert one.held(loved) == 5


@pytest.mark.parametrize("policy", list(BUILTIN))
def test_any_policy_may_decide(disk: Callable[..., Disk], policy: str) -> None:
    for _ in range(2):
        one = disk(policy=policy)
        for n in range(40):
            keys = names(5, f"round {n % 17}")
            one.load(keys)
            stored = one.store(keys)
            assert set(stored) <= {OK, DROPPED}
            assert one.load(keys) == [OK if status is OK else MISS for status in stored]
        assert one.count("policy_failed") == 0
        one.tier.close()
    assert one.count("evicted") > 0


@pytest.mark.parametrize("policy", list(BUILTIN))
def test_a_store_may_name_a_block_twice(disk: Callable[..., Disk], policy: str) -> None:
    one = disk(policy=policy)
    for n in range(60):
        keys = names(5, f"round {n % 29}")
        stored = one.store([*keys[:3], keys[0], *keys[3:]])
        again = stored.pop(3)
        assert set(stored) <= {OK, DROPPED} and again == stored[0]
        one.tier.touch(keys)
        assert one.load(keys) == [OK if status is OK else MISS for status in stored]
        if n % 9 == 8:
            one.tier.remove(keys)
    assert one.count("evicted") > 0
    assert one.count("policy_failed") == one.count("upkeep_failed") == 0
    assert one.tier._catalog.policy.residents() == one.tier._catalog.ours == len(one.tier._catalog.where)


# Load.


def test_what_cannot_wait_is_dropped(disk: Callable[..., Disk]) -> None:
    files = BrittleFiles()
    one = disk(files=files, queue_blocks=8, threads=1)
    files.set("hang")
    buffers = [memoryview(bytearray(BLOCK)) for _ in range(5)]
    one.tier.submit_store(1, names(5, "first"), buffers)
    one.tier.submit_store(2, names(5, "second"), buffers)
    assert [(answer.job, set(answer.statuses)) for answer in one.tier.poll()] == [(2, {DROPPED})]
    files.set(None)
    assert one.tier.drain(20)
    assert [(answer.job, set(answer.statuses)) for answer in one.tier.poll()] == [(1, {OK})]


def test_an_unknown_answer_has_an_end(tmp_path: Path) -> None:
    one = Disk(tmp_path / "disk").open()
    one.store(names(2))
    one.tier.close()
    files = BrittleFiles()
    files.set("hang")
    hanging = Disk(tmp_path / "disk", files=files, direct=False, open_timeout=0.2)
    assert hanging.tier.lookup(names(2)) == [Presence.UNKNOWN] * 2
    hanging.until(lambda: hanging.tier.lookup(names(2)) == [Presence.MISS] * 2)
    files.set(None)
    hanging.until(lambda: hanging.tier.lookup(names(2)) == [Presence.HIT] * 2)
    hanging.tier.close()


class Spoilsport(LRU):
    """Breaks the contract of policies when told to."""

    fails = False

    def admit(self, offer: Offer) -> None:
        if self.fails:
            raise RuntimeError("a policy at fault")
        super().admit(offer)


def test_a_policy_at_fault_fails_the_store_and_no_more(disk: Callable[..., Disk]) -> None:
    policy = Spoilsport(100)
    one = disk(policy=policy)
    one.store(names(3))
    policy.fails = True
    assert one.store(names(3, "new")) == [FAILED] * 3
    policy.fails = False
    assert one.store(names(3, "new")) == [OK] * 3
    assert one.load([*names(3), *names(3, "new")]) == [OK] * 6
