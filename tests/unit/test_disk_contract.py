"""The disk tier keeps the contract of tiers: with O_DIRECT, through the page cache, and where blocks are no whole pages."""

from pathlib import Path
from typing import Any

import pytest

from disk_medium import BrittleFiles, RawDisk
from kvloft.keys import Namespace
from kvloft.testing.tiers import RawTier, TierSuite
from kvloft.tiers import Tier
from kvloft.tiers.disk import DiskTier


class TestDisk(TierSuite):
    direct: bool | None = None

    def open(self, place: Path, namespace: Namespace, capacity_bytes: int) -> Tier:
        return DiskTier(
            place, capacity_bytes, self.block_bytes, namespace, tick=0.02, direct=self.direct, files=BrittleFiles()
        )

    def raw(self, place: Path) -> RawTier:
        return RawDisk(place)

    def break_medium(self, tier: Any, how: str | None) -> None:
        tier._space.files.set(how)


class TestDiskBuffered(TestDisk):
    direct = False


class TestDiskOddSize(TestDisk):
    block_bytes = 9001


@pytest.fixture(autouse=True)
def _everything_closed() -> Any:
    """No test leaves a thread of a tier behind. Those of engines that ran earlier in this process are not ours."""
    import threading

    before = set(threading.enumerate())
    yield
    assert [each.name for each in threading.enumerate() if each not in before and each.name.startswith("kvloft-disk")] == []
