"""A segment: a preallocated file of equal slots, and a small index beside it that says what lies in each.

`<id>.data` holds the slots: a page with the frame's header, then the payload, padded to whole pages. `<id>.index` holds one
page of header (magic, version, fingerprint, geometry, check; and, apart from it, a count of changes), then a record and
then the heat of each slot. Who holds the lock on the index's first byte owns the segment: only the owner writes slots and
records. Anybody may read, and may write heat.
"""

import errno
import os
import struct
import threading
from collections.abc import Sequence

import numpy as np
import xxhash

from kvloft.errors import TierError
from kvloft.tiers import frame
from kvloft.tiers.disk import locks
from kvloft.tiers.disk.files import DIRECT, PAGE, Ended, Files, Mover, Slots, charged_bytes, read_all, write_all
from kvloft.tiers.disk.records import HEAT, NOTHING, RECORD, Array, condemnation, make_record

DATA, INDEX, DRAFT = ".data", ".index", ".tmp"
_HEADER = struct.Struct("<8sHHI32sQQQ")
_CHECK = struct.Struct("<Q")
_MAGIC = b"KVLOFTIX"
VERSION = 1
_CHANGES = struct.Struct("<Q")
_CHANGES_AT = PAGE // 2
SLOT_BITS = 32


def stride_of(block_bytes: int) -> int:
    """Bytes of a slot on the medium."""
    return PAGE + -(-block_bytes // PAGE) * PAGE


def index_bytes(slots: int) -> int:
    """Bytes of an index on the medium, in whole pages."""
    return PAGE + -(-slots * (RECORD.itemsize + HEAT.itemsize) // PAGE) * PAGE


def segment_bytes(slots: int, block_bytes: int) -> int:
    """The most that a file system charges for a segment: both files, and its own notes on where their parts lie."""
    return slots * stride_of(block_bytes) + index_bytes(slots) + 8 * PAGE + 32 * slots


class Unfit(TierError):
    """These files are no segment of this tier: cut short, grown, empty, foreign, or of another version."""


class Segment:
    """An open segment. Reading and writing take no lock here: callers keep to the slots that are theirs.

    Attributes set and read by the catalog, under its lock: `digests` (what lies in each slot, None if nothing), `stored`,
    `heat` and `ranked` (by slot), `touched` (slots whose heat is to be written), `users` (transfers in flight), `gone` (no
    longer used).
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        name: str,
        data: int,
        index: int,
        fingerprint: bytes,
        slots: int,
        block_bytes: int,
    ) -> None:
        self.files, self.directory, self.name, self.fingerprint = files, directory, name, fingerprint
        self._data, self._index = data, index
        self.slots, self.block_bytes, self.stride = slots, block_bytes, stride_of(block_bytes)
        self.number = -1
        self.owned = False
        self.seen = -1
        """The count of changes when its records were last read."""
        self.digests: list[bytes | None] = [None] * slots
        self.stored: Array = np.zeros(slots, "<f8")
        self.set_heat(np.zeros(slots, HEAT))
        self.ranked: Array = np.zeros(slots, "?")
        """Slots whose block the policy knows."""
        self.checks: Array = np.zeros(slots, "<u8")
        """Checks of the records as last read, to see which changed."""
        self.touched: set[int] = set()
        self.charge = self._charged()
        """Bytes that the file system charged when it was opened."""
        self.users = 0
        self.gone = False
        self._changes = 0
        self._changing = threading.Lock()

    def set_heat(self, heat: Array) -> None:
        self.heat, self.used, self.hits = heat, heat["used"], heat["hits"]

    # Making and opening.

    @classmethod
    def make(
        cls, files: Files, directory: str, name: str, fingerprint: bytes, slots: int, block_bytes: int, *, direct: bool
    ) -> "Segment":
        """A new, empty segment, owned. It appears whole or, if this fails, not at all.

        Raises:
            OSError: the file system refused; ENOSPC among others.
        """
        path = os.path.join(directory, name)
        opened: list[int] = []
        try:
            data = files.open(path + DATA, os.O_CREAT | os.O_EXCL | os.O_RDWR | (DIRECT if direct else 0))
            opened.append(data)
            files.allocate(data, slots * stride_of(block_bytes))
            index = files.open(path + DRAFT, os.O_CREAT | os.O_EXCL | os.O_RDWR)
            opened.append(index)
            files.allocate(index, index_bytes(slots))
            head = _HEADER.pack(_MAGIC, VERSION, 0, PAGE, fingerprint, block_bytes, stride_of(block_bytes), slots)
            write_all(files, index, head + _CHECK.pack(xxhash.xxh3_64_intdigest(head)), 0)
            if not locks.try_lock(index, 0):
                raise OSError(errno.EAGAIN, "the file system gives no lock on a new file", path + DRAFT)
            files.rename(path + DRAFT, path + INDEX)
        except OSError:
            for fd in opened:
                files.close(fd)
            for suffix in (DATA, DRAFT)[: len(opened)]:
                files.unlink(path + suffix)
            raise
        segment = cls(files, directory, name, data, index, fingerprint, slots, block_bytes)
        segment.owned = True
        return segment

    @classmethod
    def open(
        cls, files: Files, directory: str, name: str, fingerprint: bytes, block_bytes: int, *, direct: bool, writable: bool
    ) -> "Segment":
        """A segment that is there already; not owned yet.

        Raises:
            Unfit: it is damaged or not of this tier.
            OSError: it cannot be opened.
        """
        path = os.path.join(directory, name)
        mode = os.O_RDWR if writable else os.O_RDONLY
        index = files.open(path + INDEX, mode)
        try:
            geometry = read_geometry(files, index)
            if geometry[:2] != (fingerprint, block_bytes):
                raise Unfit(f"{path}{INDEX}: holds blocks of another namespace or size")
            slots = geometry[2]
            try:
                data = files.open(path + DATA, mode | (DIRECT if direct else 0))
            except FileNotFoundError:
                raise Unfit(f"{path}{DATA}: is missing") from None
            if files.stat(data).st_size != slots * stride_of(block_bytes):
                files.close(data)
                raise Unfit(f"{path}{DATA}: has not the {slots * stride_of(block_bytes)} bytes of {slots} slots")
        except BaseException:
            files.close(index)
            raise
        return cls(files, directory, name, data, index, fingerprint, slots, block_bytes)

    def close(self) -> None:
        """Let go of the files, and of the lock."""
        self.owned = False
        self.files.close(self._data)
        self.files.close(self._index)

    def destroy(self) -> None:
        """Give its space back. The owner's right. Others who read it now find nothing.

        Raises:
            OSError: a file could not be removed.
        """
        path = os.path.join(self.directory, self.name)
        for suffix in (INDEX, DATA):
            if self.files.stat(self._index if suffix == INDEX else self._data).st_nlink:
                self.files.unlink(path + suffix)
        self.files.truncate(self._data)

    # Whose it is.

    def take(self) -> bool:
        """Try to get the owner's lock. The caller then sets `owned`."""
        return locks.try_lock(self._index, 0)

    def leave(self) -> None:
        """Let the owner's lock go. The caller has set `owned` to False."""
        locks.unlock(self._index, 0)

    def is_taken(self) -> bool:
        """Whether somebody else owns it."""
        return locks.is_locked(self._index, 0)

    def is_there(self) -> bool:
        """Whether its files still have their names and sizes: False once somebody deleted or cut them."""
        data, index = self.files.stat(self._data), self.files.stat(self._index)
        whole = data.st_size == self.slots * self.stride and index.st_size >= index_bytes(self.slots)
        return whole and data.st_nlink > 0 and index.st_nlink > 0

    def _charged(self) -> int:
        return charged_bytes(self.files.stat(self._data)) + charged_bytes(self.files.stat(self._index))

    # The index.

    def changes(self) -> int:
        """Grows whenever records change."""
        data = read_all(self.files, self._index, _CHANGES.size, _CHANGES_AT)
        return int(_CHANGES.unpack(data)[0]) if len(data) == _CHANGES.size else -1

    def _next_change(self) -> bytes:
        with self._changing:
            self._changes = max(self._changes, self.seen) + 1
            return _CHANGES.pack(self._changes)

    def read_records(self, first: int = 0, count: int | None = None) -> Array:
        """Records of `count` slots from `first` on; those that cannot be read are empty."""
        count = self.slots - first if count is None else count
        return self._read_array(RECORD, PAGE + first * RECORD.itemsize, count)

    def promises(self, slot: int, digest: bytes) -> bool:
        """Whether its record says that a block lies in a slot; of another's segment also whether it is still there."""
        try:
            return (self.owned or self.is_there()) and bool(self.read_records(slot, 1)["digest"][0].tobytes() == digest)
        except OSError:
            return False

    def write_records(self, first: int, records: bytes) -> None:
        """Write the records of neighbouring slots."""
        write_all(self.files, self._index, records, PAGE + first * RECORD.itemsize)
        write_all(self.files, self._index, self._next_change(), _CHANGES_AT)

    def read_heat(self) -> Array:
        return self._read_array(HEAT, PAGE + self.slots * RECORD.itemsize, self.slots)

    def write_heat(self, first: int, heat: Array) -> None:
        write_all(self.files, self._index, heat.tobytes(), PAGE + self.slots * RECORD.itemsize + first * HEAT.itemsize)

    def condemn(self, slot: int, digest: bytes) -> None:
        """Ask the owner to remove a block, if it still lies in the slot."""
        (record,) = self.read_records(slot, 1)
        if record["digest"].tobytes() == digest:
            self.write_heat(slot, condemnation(int(record["check"])))

    def _read_array(self, kind: "np.dtype[np.void]", offset: int, count: int) -> Array:
        data = read_all(self.files, self._index, count * kind.itemsize, offset)
        array = np.zeros(count, kind)
        whole = np.frombuffer(data, kind, len(data) // kind.itemsize)
        array[: len(whole)] = whole
        return array

    # The slots.

    def read(
        self,
        mover: Mover,
        ended: Ended,
        first: int,
        digests: Sequence[bytes],
        payloads: Sequence[memoryview],
        direct: bool,
    ) -> None:
        """Have blocks read from neighbouring slots, and checked."""
        self.files.read_slots(mover, ended, self._data, self._slots(digests, payloads, direct), first * self.stride)

    def write(
        self,
        mover: Mover,
        ended: Ended,
        first: int,
        digests: Sequence[bytes],
        payloads: Sequence[memoryview],
        stored: float,
        direct: bool,
        sync: bool,
        clear: bool,
    ) -> None:
        """Have blocks written to neighbouring slots, then their records; with `clear`, the old records are cleared first.
        With `sync` the medium keeps the blocks before their records, and then these."""
        at = PAGE + first * RECORD.itemsize
        records = b"".join(make_record(digest, first + n, stored, self.block_bytes) for n, digest in enumerate(digests))
        notes: tuple[tuple[int, bytes], ...] = (at, records), (_CHANGES_AT, self._next_change())
        if clear:
            notes = (at, NOTHING * len(digests)), *notes
        slots = self._slots(digests, payloads, direct)
        self.files.write_slots(
            mover, ended, self._data, slots, first * self.stride, self._index, notes, int(clear), sync=sync
        )

    def read_frame(self, slot: int, payload: memoryview) -> bytes:
        """Read one slot now: its header, and the payload into its buffer; no header if not all of it came."""
        header = bytearray(PAGE)
        got = self.files.read(self._data, [header, payload], slot * self.stride)
        return bytes(header[: frame.HEADER_BYTES]) if got == PAGE + self.block_bytes else b""

    def _slots(self, digests: Sequence[bytes], payloads: Sequence[memoryview], direct: bool) -> Slots:
        return Slots(self.fingerprint, digests, payloads, PAGE, self.stride, direct)


def read_geometry(files: Files, index: int) -> tuple[bytes, int, int]:
    """Fingerprint, bytes of a block, and number of slots, from an open index.

    Raises:
        Unfit: it is no sound index of this version.
    """
    data = read_all(files, index, _HEADER.size + _CHECK.size, 0)
    if len(data) < _HEADER.size + _CHECK.size or data[:8] != _MAGIC:
        raise Unfit("no kvloft index")
    _, version, _, page, fingerprint, block_bytes, stride, slots = _HEADER.unpack_from(data)
    if version != VERSION or page != PAGE:
        raise Unfit(f"an index of version {version} for pages of {page} bytes; this kvloft knows {VERSION} and {PAGE}")
    if xxhash.xxh3_64_intdigest(data[: _HEADER.size]) != _CHECK.unpack_from(data, _HEADER.size)[0]:
        raise Unfit("the index's header is damaged")
    if stride != stride_of(block_bytes) or not slots:
        raise Unfit("the index's header contradicts itself")
    if files.stat(index).st_size != index_bytes(slots):
        raise Unfit(f"the index has not the {index_bytes(slots)} bytes of {slots} slots")
    return fingerprint, block_bytes, slots
