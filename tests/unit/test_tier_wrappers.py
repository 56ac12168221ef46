"""Wrappers keep the contract of the tier below, and do what they are for."""

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_disk_house import BLOCK, SPACE, names

from disk_medium import BrittleFiles, RawDisk
from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.testing.tiers import RawTier, TierSuite
from kvloft.tiers import Status, Tier
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.wrappers import Faulty, Slow, Throttled


class TestWrapped(TierSuite):
    """All three, one around the other, when they do nothing bad."""

    def open(self, place: Path, namespace: Namespace, capacity_bytes: int) -> Tier:
        disk = DiskTier(place, capacity_bytes, self.block_bytes, namespace, tick=0.02, files=BrittleFiles())
        return Throttled(Slow(Faulty(disk), 0.001), 1e12)

    def raw(self, place: Path) -> RawTier:
        return RawDisk(place)

    def break_medium(self, tier: Any, how: str | None) -> None:
        tier.tier.tier.tier._space.files.set(how)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, 1 << 20, BLOCK, SPACE)
    yield tier
    tier.close()


def buffers(n: int) -> list[memoryview]:
    return [memoryview(bytearray(BLOCK)) for _ in range(n)]


def test_faulty_fails_the_share_it_was_told(disk: DiskTier) -> None:
    tier = Faulty(disk, store=0.5, seed=1)
    for job in range(40):
        tier.submit_store(job, names(1, str(job)), buffers(1))
    assert tier.drain(20)
    answers = tier.poll()
    failed = [answer.job for answer in answers if list(answer.statuses) == [Status.FAILED] and answer.error]
    assert sorted(answer.job for answer in answers) == list(range(40))
    assert 10 < len(failed) < 30
    tier.store = 0.0
    tier.load = 1.0
    tier.submit_load(40, names(1, "0"), buffers(1))
    assert list(tier.poll()[0].statuses) == [Status.FAILED]


def test_slow_answers_not_before_its_time(disk: DiskTier) -> None:
    tier = Slow(disk, 0.05)
    start = time.monotonic()
    tier.submit_store(1, names(2), buffers(2))
    assert tier.poll() == []
    assert tier.drain(20)
    (answer,) = tier.poll()
    assert time.monotonic() - start >= 0.05 and answer.seconds >= 0.05
    assert list(answer.statuses) == [Status.OK] * 2


def test_a_hanging_tier_comes_back(disk: DiskTier) -> None:
    tier = Slow(disk, math.inf)
    tier.submit_store(1, names(2), buffers(2))
    assert not tier.drain(0.05)
    assert tier.poll() == []
    threading.Timer(0.02, tier.release).start()
    tier.delay = 0.0
    assert disk.drain(20)
    while not (answers := tier.poll()):
        time.sleep(0.001)
    assert list(answers[0].statuses) == [Status.OK] * 2


def test_throttled_adds_up_bytes(disk: DiskTier) -> None:
    tier = Throttled(disk, bytes_per_second=10 * BLOCK / 0.05)
    start = time.monotonic()
    for job in range(5):
        tier.submit_store(job, names(2, str(job)), buffers(2))
    assert tier.drain(20)
    assert len(tier.poll()) == 5 and time.monotonic() - start >= 0.05
    with pytest.raises(ConfigError, match="moves nothing"):
        Throttled(disk, 0)
