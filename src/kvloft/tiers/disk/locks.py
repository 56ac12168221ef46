"""Locks between processes: byte ranges of a file, which the kernel lets go when their holder dies.

Linux "open file description" locks: they belong to the open file, not to the process or thread, so closing another
descriptor of the same file does not lose them. None of these calls waits.
"""

import fcntl
import os
import struct
from collections.abc import Sequence

from kvloft import _frames
from kvloft.tiers.disk.files import Files

_FLOCK = struct.Struct("@hhqqi0q")

GROWTH = 0
"""Who holds this byte of the lock file may make and delete segments."""
MEMBERS = range(1 << 10, (1 << 10) + 512)
"""One byte each process that uses the directory."""
WANTS = range(1 << 12, (1 << 12) + 512)
"""The same for a process that has less than its share and needs room."""
_CLAIMS = 1 << 32
"""From here on one byte for each of 2^56 key digests: who holds it writes that block."""


def _call(command: int, fd: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    request = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    return _FLOCK.unpack(fcntl.fcntl(fd, command, request))


def try_lock(fd: int, start: int, length: int = 1) -> bool:
    """Take a range; False if somebody else has a part of it. Taking what one has already is no error."""
    try:
        _call(fcntl.F_OFD_SETLK, fd, fcntl.F_WRLCK, start, length)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(fd: int, start: int, length: int = 1) -> None:
    """Let a range go; nothing happens if it was not held."""
    _call(fcntl.F_OFD_SETLK, fd, fcntl.F_UNLCK, start, length)


def is_locked(fd: int, start: int, length: int = 1) -> bool:
    """Whether somebody else has a part of the range. Takes nothing; needs no right to write."""
    return _call(fcntl.F_OFD_GETLK, fd, fcntl.F_WRLCK, start, length)[0] != fcntl.F_UNLCK


def _claim_of(digest: bytes) -> int:
    return _CLAIMS + int.from_bytes(digest[:7])


class LockFile:
    """The lock file of a directory, and this tier's place among its members.

    Raises:
        OSError: it cannot be opened for writing.
    """

    NAME = "kvloft.lock"

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = os.path.join(root, self.NAME)
        self.fd = files.open(self._path, os.O_RDWR | os.O_CREAT)
        self._place = next((at for at, byte in enumerate(MEMBERS) if try_lock(self.fd, byte)), None)

    def is_current(self) -> bool:
        """Whether others who come now open the same file: False once it was deleted or replaced."""
        try:
            return os.path.samestat(self._files.stat(self._path), self._files.stat(self.fd))
        except FileNotFoundError:
            return False

    def members(self) -> int:
        """Tiers that use the directory, this one included."""
        return 1 + sum(is_locked(self.fd, byte) for byte in MEMBERS)

    def wanted(self) -> bool:
        """Whether another tier wants room."""
        return is_locked(self.fd, WANTS.start, len(WANTS))

    def want(self, more: bool) -> None:
        """Say, or take back, that this tier needs more room than it has."""
        if self._place is not None:
            (try_lock if more else unlock)(self.fd, WANTS[self._place])

    def claim(self, digests: Sequence[bytes]) -> list[bool]:
        """Become the one who writes these blocks; False for those that another process is at."""
        return _frames.lock_bytes(self.fd, [_claim_of(digest) for digest in digests], True)

    def release(self, digests: Sequence[bytes]) -> None:
        """Let others write these blocks."""
        _frames.lock_bytes(self.fd, [_claim_of(digest) for digest in digests], False)

    def close(self) -> None:
        self._files.close(self.fd)
