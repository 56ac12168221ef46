"""The disk tier when its own code, or its policy's, has a fault: jobs are answered, and nothing stays taken."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from test_disk_house import Disk, names

from kvloft.policies import LRU
from kvloft.request import Key, Request
from kvloft.tiers import Status
from kvloft.tiers.disk import Files
from kvloft.tiers.disk.files import PAGE, Ended, Mover, Slots
from kvloft.tiers.disk.workers import Kind, Workers

OK, FAILED = Status.OK, Status.FAILED


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    opened: list[Disk] = []

    def open_disk(**settings: Any) -> Disk:
        opened.append(Disk(tmp_path / "disk", 8 << 20, **settings))
        return opened[-1].open()

    yield open_disk
    for one in opened:
        one.tier.close()


class Mistaken(Files):
    """What moves slots raises what nobody expects, for runs of at most so many blocks."""

    def __init__(self) -> None:
        self.most = 0

    def _check(self, slots: Slots) -> None:
        if len(slots.digests) <= self.most:
            raise RuntimeError("a fault of the code")
        if self.most:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read_slots(self, mover: Mover, ended: Ended, fd: int, slots: Slots, offset: int) -> None:
        self._check(slots)
        super().read_slots(mover, ended, fd, slots, offset)

    def write_slots(self, mover: Mover, ended: Ended, fd: int, slots: Slots, offset: int, *rest: Any, sync: bool) -> None:
        self._check(slots)
        super().write_slots(mover, ended, fd, slots, offset, *rest, sync=sync)


@pytest.mark.parametrize("most", [1, 99])
def test_stores_that_a_fault_ends_leave_no_place_and_no_claim_taken(disk: Callable[..., Disk], most: int) -> None:
    files = Mistaken()
    one, other = disk(files=files), disk()
    files.most = most
    for n in range(30):
        assert one.store(names(6, f"round {n}")) == [FAILED] * 6
    files.most = 0
    assert one.tier.stats().blocks == 0
    segments = len(one.tier._catalog.segments)
    assert len(one.tier._catalog.free) == segments * next(iter(one.tier._catalog.segments.values())).slots
    assert other.store(names(6, "round 0")) == [OK] * 6
    for n in range(1, 8):
        assert one.store(names(6, f"round {n}")) == [OK] * 6
        assert one.load(names(6, f"round {n}")) == [OK] * 6
    assert one.count("evicted") == one.count("broken_slots") == 0


@pytest.mark.parametrize("most", [1, 99])
def test_loads_that_a_fault_ends_leave_no_place_taken(disk: Callable[..., Disk], most: int) -> None:
    files = Mistaken()
    one = disk(files=files)
    keys = names(6)
    one.store(keys)
    free = len(one.tier._catalog.free)
    files.most = most
    for _ in range(3):
        assert one.load(keys) == [FAILED] * 6
    files.most = 0
    assert one.load(keys) == [OK] * 6
    one.tier.remove(keys)
    one.until(lambda: len(one.tier._catalog.free) == free + 6)
    assert not any(segment.users for segment in one.tier._catalog.segments.values())


class Forgetful(LRU):
    """Fails where it is told what was stored."""

    fails = False

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        if self.fails:
            raise RuntimeError("a fault of the policy")
        super().commit(keys, request)


def test_a_policy_that_fails_at_the_end_of_a_store_costs_no_later_store(disk: Callable[..., Disk]) -> None:
    policy = Forgetful(600)
    one, keys = disk(policy=policy), names(6)
    policy.fails = True
    assert one.store(keys) == [FAILED] * 6
    policy.fails = False
    one.tier.remove(keys)
    assert one.store(keys) == one.load(keys) == [OK] * 6


def test_stopping_gives_up_on_a_move_that_hangs_and_can_be_tried_again() -> None:
    workers = Workers(1, "hanging")
    begun: SimpleQueue[tuple[Mover, Ended]] = SimpleQueue()
    ended: list[tuple[int | bytes, int]] = []
    workers.open()
    workers.give(Kind.LOAD, lambda: workers.move(Kind.LOAD, lambda *it: begun.put(it), lambda *how: ended.append(how)))
    mover, tell = begun.get(timeout=20)
    assert not workers.stop(0.1)
    mover.read(tell, -1, Slots(bytes(32), [bytes(32)], [memoryview(bytearray(1))], PAGE, 2 * PAGE, False), 0)
    assert workers.stop(20) and ended == [(-1, errno.EBADF)]
