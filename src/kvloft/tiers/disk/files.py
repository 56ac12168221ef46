"""The system calls of the disk tier, in one place, so that a test can make any of them fail, lie or sleep."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from kvloft import _frames

PAGE = mmap.PAGESIZE
AnyBuffer: TypeAlias = bytes | bytearray | memoryview
DIRECT = getattr(os, "O_DIRECT", 0)
LONGEST = _frames.LONGEST
"""Slots that one call can move."""
Ended: TypeAlias = Callable[[int | bytes, int], None]
"""Is told how a run of slots ended: bytes written, or for each frame that came whole what is wrong with it, as a number for
`frame.defects`; and the system's error number, 0 if there was none."""
Mover: TypeAlias = _frames.Mover[Ended]


class Slots(NamedTuple):
    """Frames in neighbouring slots of a file: a page for the header, the payload, and padding.

    Args:
        fingerprint: the namespace's.
        digests: of the blocks' keys.
        payloads: the blocks.
        page: bytes of a page.
        stride: bytes of a slot.
        direct: whether the file is open with O_DIRECT.
    """

    fingerprint: bytes
    digests: Sequence[bytes]
    payloads: Sequence[memoryview]
    page: int
    stride: int
    direct: bool

    @property
    def nbytes(self) -> int:
        return self.stride * len(self.digests)


class Files:
    """Plain calls: no retries and no policy. All raise `OSError`; files are made 0600, directories 0700."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        """Bytes read into the buffers, in their order; fewer than they hold at the end of the file."""
        return os.preadv(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[AnyBuffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def read_slots(self, mover: Mover, ended: Ended, fd: int, slots: Slots, offset: int) -> None:
        """Have frames read and checked."""
        mover.read(ended, fd, slots, offset)

    def write_slots(
        self,
        mover: Mover,
        ended: Ended,
        fd: int,
        slots: Slots,
        offset: int,
        index: int,
        notes: tuple[tuple[int, bytes], ...],
        first: int,
        *,
        sync: bool,
    ) -> None:
        """Have frames sealed and written, and notes (offset, bytes) to the file `index`: the `first` ones before the frames,
        the others after them, if all were written. With `sync` the medium keeps the frames before these, then the notes."""
        mover.write(ended, fd, slots, offset, index, notes, first, sync)

    def allocate(self, fd: int, size: int) -> None:
        """Have the file system charge all of the file's `size` now, so that no later write finds it full."""
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int) -> None:
        """Give all of the file's space back now, even while others have it open."""
        os.ftruncate(fd, 0)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def make_directory(self, path: str) -> None:
        """Make a directory, its parents too; nothing happens if it is there."""
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            self.make_directory(os.path.dirname(path))
            self.make_directory(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list(self, path: str) -> list[os.DirEntry[str]]:
        with os.scandir(path) as entries:
            return list(entries)

    def stat(self, target: int | str) -> os.stat_result:
        return os.stat(target)

    def free_bytes(self, path: str) -> int:
        """What an unprivileged process may still write to the file system."""
        space = os.statvfs(path)
        return space.f_bavail * space.f_frsize


def read_all(files: Files, fd: int, length: int, offset: int) -> bytes:
    """`length` bytes from a file, or fewer at its end."""
    data = bytearray(length)
    view = memoryview(data)
    done = 0
    while done < length and (got := files.read(fd, [view[done:]], offset + done)):
        done += got
    return bytes(view[:done])


def write_all(files: Files, fd: int, data: AnyBuffer, offset: int) -> None:
    """All of `data`, or `OSError`."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        done = files.write(fd, [view], offset)
        if not done:
            raise OSError(errno.EIO, "the file system accepted no bytes")
        view, offset = view[done:], offset + done


def charged_bytes(status: os.stat_result) -> int:
    """What the file system charges for a file or directory."""
    return status.st_blocks * 512


def takes_direct(files: Files, directory: str) -> bool:
    """Whether the file system takes O_DIRECT: tried with one page in a file that is there for a moment.

    Raises:
        OSError: no file can be written there, with O_DIRECT or without.
    """
    path = os.path.join(directory, f"probe.{os.urandom(8).hex()}.tmp")
    page = aligned(PAGE)
    try:
        fd = files.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | DIRECT)
        try:
            return files.write(fd, [page], 0) == PAGE == files.read(fd, [page], 0) and bool(DIRECT)
        finally:
            files.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        # Some file systems refuse O_DIRECT only after they have made the file.
        with suppress(FileNotFoundError):
            files.unlink(path)


def aligned(length: int) -> memoryview:
    """Zeroed memory that starts at a page."""
    return memoryview(mmap.mmap(-1, max(length, 1)))[:length]
