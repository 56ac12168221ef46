"""Frames, compiled (`csrc/frames/`): sealed, checked, and moved by threads that need no interpreter.

Whatever is of the wrong size or kind raises `ValueError` or `TypeError` before anything is moved.
"""

from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from _typeshed import ReadableBuffer, WriteableBuffer

MAGIC: bytes
VERSION: int
HEADER_BYTES: int
LONGEST: int
"""Frames of one run, at most."""

_Token = TypeVar("_Token")
_Slots: TypeAlias = tuple[bytes, Sequence[bytes], Sequence[WriteableBuffer], int, int, bool]
"""Frames in neighbouring slots of one file, 1 to 256: the namespace's fingerprint and the blocks' key digests, 32 bytes
each; the payloads; bytes of a page and of a slot (a page with the header, the payload, less than 64 KiB of padding); whether
the file is open with O_DIRECT. What O_DIRECT does not take, for its length or where it lies in memory, is copied once."""

def seal(fingerprint: bytes, digest: bytes, payload: ReadableBuffer, /) -> bytes:
    """The header for a payload."""

def check(header: ReadableBuffer, payload: ReadableBuffer, fingerprint: bytes, digest: bytes, /) -> int:
    """0 if header and payload are the frame asked for, else which `kvloft.tiers.frame.Defect`, counted from 1."""

def lock_bytes(fd: int, starts: Sequence[int], take: bool, /) -> list[bool]:
    """Take, or leave, a lock of the open file on each of these bytes, without waiting; for each whether that was possible.

    Raises:
        OSError: the system refused, for another reason than that somebody else holds the byte.
    """

class Mover(Generic[_Token]):
    """Threads that move runs of frames: reads before writes, but one thread prefers writes, and a thread that is alone takes
    turns, so that neither starves.

    Payloads are held until `wait` or `close` has told of the run's end, and so are tokens, which may be anything.
    """

    def __new__(cls, threads: int) -> Mover[_Token]: ...
    def read(self, token: _Token, fd: int, slots: _Slots, offset: int, /) -> None:
        """Read frames from `offset` on, in one call to the system, and check them."""

    def write(
        self,
        token: _Token,
        fd: int,
        slots: _Slots,
        offset: int,
        index: int,
        notes: tuple[tuple[int, bytes], ...],
        first: int,
        sync: bool,
        /,
    ) -> None:
        """Seal frames and write them from `offset` on, in one call to the system.

        Notes (offset, bytes; at most 3) are written to the file `index`, all of each: the `first` ones of them before the
        frames, the others after them, if the system took all. With `sync` the medium keeps the frames before these, and then
        the notes.
        """

    def wait(self, writes: bool, /) -> list[tuple[_Token, int | bytes, int]]:
        """Wait until a write, or a read, has ended, or for `wake`: token, how it ended, the system's error number or 0.

        A write ends with the bytes it took, a read with what `check` says of each frame that came whole.
        """

    def wake(self, writes: bool, /) -> None:
        """End the wait for writes, or for reads, that is going on, or else the next."""

    def close(self) -> None:
        """Wait for all runs to end, however long that takes, then let the threads go. It ends all waits. Idempotent."""
