"""The medium under the disk tier, reached without the tier's own code: its format is written out here a second time."""

import errno
import os
import struct
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from kvloft.testing.tiers import RawTier
from kvloft.tiers.disk import Files
from kvloft.tiers.frame import HEADER_BYTES

PAGE = 4096


class RawDisk(RawTier):
    def __init__(self, root: Path) -> None:
        self.root = root

    def indices(self) -> list[Path]:
        return sorted(self.root.glob("*/*.index"))

    def data(self) -> list[Path]:
        return sorted(self.root.glob("*/*.data"))

    def frames(self) -> list[Hashable]:
        found: list[Hashable] = []
        for index in self.indices():
            content = index.read_bytes()
            block_bytes, stride, slots = struct.unpack_from("<QQQ", content, 48)
            for slot in range(slots):
                *_, state = struct.unpack_from("<Q32sdQQ", content, PAGE + 64 * slot)
                if state == 1:
                    found.append((index.with_suffix(".data"), slot, stride, block_bytes))
        return found

    def read(self, name: Hashable) -> bytes:
        path, slot, stride, block_bytes = name
        with path.open("rb") as file:
            file.seek(slot * stride)
            whole = file.read(stride)
        return whole[:HEADER_BYTES] + whole[PAGE : PAGE + block_bytes]

    def write(self, name: Hashable, frame: bytes) -> None:
        path, slot, stride, block_bytes = name
        frame = frame.ljust(HEADER_BYTES + block_bytes, b"\0")
        with path.open("r+b") as file:
            file.seek(slot * stride)
            file.write(frame[:HEADER_BYTES])
            file.seek(slot * stride + PAGE)
            file.write(frame[HEADER_BYTES:])

    def charged(self) -> int:
        return sum(path.lstat().st_blocks * 512 for path in [self.root, *self.root.rglob("*")])


class BrittleFiles(Files):
    """System calls that fail or hang when told to; those that fail are the ones on slots."""

    def __init__(self) -> None:
        self.how: str | None = None
        self.error = errno.EIO
        self.works = threading.Event()
        self.works.set()

    def set(self, how: str | None) -> None:
        self.how = how
        if how == "hang":
            self.works.clear()
        else:
            self.works.set()

    def read(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        self.works.wait()
        return super().read(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        self.works.wait()
        return super().write(fd, buffers, offset)

    def read_slots(self, *call: Any) -> None:
        self._fail_if("read")
        super().read_slots(*call)

    def write_slots(self, *call: Any, sync: bool) -> None:
        self._fail_if("write")
        super().write_slots(*call, sync=sync)

    def _fail_if(self, how: str) -> None:
        self.works.wait()
        if self.how == how:
            raise OSError(self.error, os.strerror(self.error))
