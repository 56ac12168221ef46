"""Host memory for blocks: slots of equal bytes, shared by the processes of an engine.

The memory is anonymous (`memfd`): it has no name in any file system, needs no room in /dev/shm, and is gone with the last
process that holds it, however that process ends. The processes of one engine find each other through an abstract socket,
which likewise leaves nothing behind: the first one makes the memory and hands it to the others, all of the same user.
"""

import ctypes
import mmap
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvloft.config import format_size
from kvloft.errors import KvloftError

PAGE = mmap.PAGESIZE
_STEP = 8 << 20
"""Bytes reserved at a time: small enough to be cut short by `close`, large enough to cost few calls."""
_POPULATE_WRITE = 23
_HELLO_SECONDS = 5.0
"""A peer that says nothing for so long holds up the others no longer."""
_HEADER = struct.Struct("=QQ")
_CREDENTIALS = struct.Struct("iII")
"""Process, user, group: the kernel's `struct ucred`."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class ArenaError(KvloftError):
    """Host memory cannot be had, or not shared. The text gives the bytes needed and what there is."""


class Arena:
    """`slots` pieces of host memory of `slot_bytes` each, all readable and writable by every process that opened it.

    Making it takes no longer for more memory: a thread reserves the pages meanwhile, in slot order. `reserve` waits for
    no one and makes sure that given slots are backed, so that a write into them cannot fail.

    Args:
        name: openers that give the same name share the memory; None keeps it private.
        slots: how many, at least 1.
        slot_bytes: size of each, a multiple of the page size, so that slots can be read and written around the page cache.
        member: who opens it. Each member may do so once, so that two engines of one name cannot mix their blocks.
        timeout: seconds to wait for the process that makes the memory.

    Raises:
        ArenaError: there is not enough memory, or the one with this name has other sizes, has this member already,
            belongs to another user, or cannot be reached.
    """

    def __init__(self, name: str | None, slots: int, slot_bytes: int, member: str = "", timeout: float = 60.0) -> None:
        if slots < 1 or slot_bytes < 1 or slot_bytes % PAGE:
            raise ArenaError(
                f"arena of {slots} slots of {slot_bytes} bytes: give at least 1 slot, and multiples of {PAGE} bytes"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._host: _Host | None = None
        self._closing = threading.Event()
        self._reserved = 0
        self._fd = self._open(name, member, time.monotonic() + timeout)
        self._map = mmap.mmap(self._fd, self.nbytes)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        """All of it, in slot order: slot s is `bytes[s * slot_bytes : (s + 1) * slot_bytes]`."""
        self._filler = threading.Thread(target=self._fill, name="kvloft-arena", daemon=True)
        self._filler.start()

    @property
    def nbytes(self) -> int:
        """Size of the whole."""
        return self.slots * self.slot_bytes

    @property
    def reserved(self) -> int:
        """Bytes backed by memory so far, counted from the first slot."""
        return self._reserved

    @property
    def shared(self) -> bool:
        """Whether other processes can join."""
        return self._host is not None

    def view(self, slot: int) -> memoryview:
        """One slot's bytes: writable, contiguous, format "B". Valid until `close`.

        Raises:
            IndexError: there is no such slot.
        """
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} of an arena of {self.slots}")
        start = slot * self.slot_bytes
        return memoryview(self._map)[start : start + self.slot_bytes]

    def reserve(self, slots: NDArray[np.integer]) -> None:
        """Make sure that these slots are backed by memory. Almost always a comparison.

        Raises:
            ArenaError: the machine has run out of memory since the arena was made.
        """
        if len(slots) and (int(slots.max()) + 1) * self.slot_bytes > self._reserved:
            for slot in np.unique(slots).tolist():
                self._back(slot * self.slot_bytes, self.slot_bytes)

    def close(self) -> None:
        """Let go of the memory; it is freed when the last process has. Idempotent.

        Raises:
            BufferError: views of it are still in use.
        """
        self._closing.set()
        self._filler.join()
        if self._host is not None:
            self._host.close()
            self._host = None
        if self._map.closed:
            return
        self.bytes = np.empty(0, np.uint8)
        os.close(self._fd)
        self._map.close()

    # Getting the memory.

    def _open(self, name: str | None, member: str, deadline: float) -> int:
        if name is None:
            return self._make()
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(address := f"\0kvloft/{os.getuid()}/{name}")
            except OSError:
                listener.close()
                with suppress(ConnectionError):
                    return self._join(name, address, member, deadline)
                # Whoever held the name has ended, so it may be free by now.
                if time.monotonic() > deadline:
                    raise ArenaError(f"arena {name!r}: the process that was to share it ended; restart the engine") from None
                continue
            try:
                listener.listen()
                fd = self._make()
            except BaseException:
                listener.close()
                raise
            self._host = _Host(listener, fd, _HEADER.pack(self.slots, self.slot_bytes), member)
            return fd

    def _make(self) -> int:
        free = available_memory()
        if self.nbytes > free:
            raise ArenaError(
                f"{format_size(self.nbytes)} ({self.nbytes} bytes) of host memory are needed for {self.slots} slots of "
                f"{self.slot_bytes} bytes, but only {format_size(free)} ({free} bytes) are available; "
                "ask for less, or give the machine or container more"
            )
        fd = os.memfd_create("kvloft", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self.nbytes)
        except OSError as error:
            os.close(fd)
            raise ArenaError(f"{format_size(self.nbytes)} of host memory cannot be had: {error}") from error
        return fd

    def _join(self, name: str, address: str, member: str, deadline: float) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                peer.connect(address)
                if (owner := _user_of(peer)) != os.getuid():
                    raise ArenaError(
                        f"arena {name!r}: user {owner} holds this name, and memory of another user is not taken; "
                        "give the engine another engine_id, or have that process ended"
                    )
                peer.sendall(member.encode())
                peer.shutdown(socket.SHUT_WR)
                header, fds, _, _ = socket.recv_fds(peer, _HEADER.size, 1)
            except TimeoutError:
                raise ArenaError(f"arena {name!r}: the process that makes it did not hand it over in time") from None
        if not header:
            raise ConnectionResetError
        if not fds:
            raise ArenaError(f"arena {name!r} has a member {member!r} already; give each engine an engine_id of its own")
        theirs = _HEADER.unpack(header)
        if theirs != (self.slots, self.slot_bytes):
            os.close(fds[0])
            raise ArenaError(
                f"arena {name!r} has {theirs[0]} slots of {theirs[1]} bytes, but this process expects {self.slots} of "
                f"{self.slot_bytes}; all processes of an engine must have the same settings"
            )
        return fds[0]

    # Backing it.

    def _fill(self) -> None:
        while not self._closing.is_set() and self._reserved < self.nbytes:
            size = min(_STEP, self.nbytes - self._reserved)
            try:
                self._back(self._reserved, size)
            except ArenaError:
                # Not an error yet: the write that needs the memory finds out for itself, and says so.
                return
            self._reserved += size

    def _back(self, start: int, size: int) -> None:
        """Allocate pages now, rather than at the first write, which could only fail by a signal that kills the process."""
        try:
            os.posix_fallocate(self._fd, start, size)
        except OSError as error:
            raise ArenaError(
                f"host memory ran out: {format_size(self.nbytes)} were promised, {format_size(self._reserved)} could be "
                f"reserved ({error.strerror}); give kvloft less, or other programs of this machine or container"
            ) from error
        address = self.bytes.ctypes.data + start
        # Kernels before 5.14 do not know it; there the first write of a page takes a little longer.
        _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(_POPULATE_WRITE))


class _Host:
    """Hands the memory to processes of the same user that ask for it, once to each member."""

    def __init__(self, listener: socket.socket, fd: int, header: bytes, member: str) -> None:
        self._listener = listener
        self._fd = fd
        self._header = header
        self._members = {member.encode()}
        self._thread = threading.Thread(target=self._serve, name="kvloft-arena-host", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                if _user_of(peer) != os.getuid():
                    continue
                peer.settimeout(_HELLO_SECONDS)
                with peer.makefile("rb") as lines:
                    member = lines.read()
                known = member in self._members
                self._members.add(member)
                socket.send_fds(peer, [self._header], [] if known else [self._fd])

    def close(self) -> None:
        # shutdown wakes the accept; close alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _user_of(peer: socket.socket) -> int:
    """The user whose process is at the other end, as the kernel knows it."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that could be taken now: what the machine has, or less if the container's limit is nearer.

    Args:
        root: where /proc and /sys are; another folder only for tests.
    """
    return min([machine_memory(root), *(room for group in _cgroups(root) if (room := _room(group)) is not None)])


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory, or of the container's if it may use less. The same for all its processes, at all times.

    Args:
        root: where /proc and /sys are; another folder only for tests.
    """
    limits = [limit for group in _cgroups(root) if (limit := _limit(group)) is not None]
    return min([_meminfo(root, "MemTotal"), *limits])


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes that the machine could give now, whatever this process's container may take."""
    return _meminfo(root, "MemAvailable")


def _meminfo(root: Path, name: str) -> int:
    fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def _cgroups(root: Path) -> list[Path]:
    """This process's memory groups, innermost first; none where the kernel has none."""
    mount, listed = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    groups = []
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base = mount
        elif "memory" in controllers.split(","):
            base = mount / "memory"
        else:
            continue
        inner = base / path.lstrip("/")
        # Inside a container the path may be the host's, and only the root of the mount is there.
        groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(base))]
    return groups


def _room(group: Path) -> int | None:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            reclaimable = int(stat.get("inactive_file", 0))
            return max(int((group / limit).read_text()) - int((group / used).read_text()) + reclaimable, 0)
    return None


def _limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int((group / name).read_text())
    return None
