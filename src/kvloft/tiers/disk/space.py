"""The space of a directory: what the file system charges for it, and how segments are made and given back."""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kvloft.tiers.disk import locks
from kvloft.tiers.disk.files import Files, charged_bytes, write_all
from kvloft.tiers.disk.locks import LockFile
from kvloft.tiers.disk.segment import DATA, DRAFT, INDEX, Segment, segment_bytes, stride_of
from kvloft.troubles import Troubles

_log = logging.getLogger(__name__)
HOME = re.compile(r"[0-9a-f]{32}")
OURS = re.compile(rf"[0-9a-f]{{16}}({re.escape(DATA)}|{re.escape(INDEX)}|{re.escape(DRAFT)})")
DESCRIPTION = "namespace.json"
_OVERHEAD = 64 << 10
"""Directories, the lock file and descriptions."""
_SEGMENTS = 64
"""Segments that a full directory should have: few files, yet small steps when space passes from one to another."""
_LARGEST = 64 << 30
_PATIENCE = 1.0
"""Seconds to wait for another process that is making or deleting a segment."""
_OWN_PATIENCE = 30.0
"""The same for another thread of this process: it has surely something to show for it."""


def slots_per_segment(capacity_bytes: int, block_bytes: int) -> int:
    """Slots of a regular segment; 0 if not even one block fits."""
    usable, stride = capacity_bytes - _OVERHEAD, stride_of(block_bytes)
    if usable < segment_bytes(1, block_bytes):
        return 0
    return max(1, min(max(usable // (_SEGMENTS * stride), min(8, usable // (4 * stride))), _LARGEST // stride))


def charged_for(files: Files, root: str) -> int:
    """Bytes that the file system charges for a directory and all in it; what goes meanwhile may count or not."""
    total, paths = charged_bytes(files.stat(root)), [root]
    while paths:
        try:
            entries = files.list(paths.pop())
        except FileNotFoundError:
            continue
        for entry in entries:
            try:
                total += charged_bytes(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            if entry.is_dir(follow_symlinks=False):
                paths.append(entry.path)
    return total


class Space:
    """Makes and deletes segments in one namespace of a directory, and holds the bounds of the whole directory.

    Only who holds the growth lock makes segments, deletes those of others, or sweeps leftovers, so the bound is kept by one
    process at a time, over all namespaces, by counting what the file system charges for everything in the directory.

    Args:
        root: the directory.
        home: the namespace's directory in it.
        capacity_bytes: the bound.
        min_free_bytes: no growing when less than this would remain free on the file system.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        home: str,
        fingerprint: bytes,
        block_bytes: int,
        capacity_bytes: int,
        min_free_bytes: int,
        description: bytes,
        count: Callable[[str], None],
    ) -> None:
        self.files, self.root, self.home = files, root, home
        self.fingerprint, self.block_bytes = fingerprint, block_bytes
        self.capacity_bytes, self.min_free_bytes = capacity_bytes, min_free_bytes
        self.slots = slots_per_segment(capacity_bytes, block_bytes)
        self.direct = False
        self.lock_file: LockFile | None = None
        self.troubles = Troubles(f"disk tier {root}", _log)
        self._description = description
        self._count = count
        self._mutex = threading.Lock()
        self._stuck: set[str] = set()
        """Files that could not be removed; they are not tried again by this process."""

    @contextmanager
    def growing(self, patience: float = _PATIENCE) -> Iterator[bool]:
        """Hold the growth lock, against other threads and processes; yields False if it was not to be had in time."""
        lock_file = self.lock_file
        if lock_file is None or not self._mutex.acquire(timeout=_OWN_PATIENCE):
            yield False
            return
        try:
            deadline = time.monotonic() + patience
            while not (held := locks.try_lock(lock_file.fd, locks.GROWTH)) and time.monotonic() < deadline:
                time.sleep(0.002)
            try:
                yield held
            finally:
                if held:
                    locks.unlock(lock_file.fd, locks.GROWTH)
        finally:
            self._mutex.release()

    def charged(self) -> int:
        """Bytes that the file system charges for the directory and all in it."""
        return charged_for(self.files, self.root)

    def excess(self) -> int:
        """Bytes by which the directory is above its bound, or the file system below its floor of free space."""
        floor = self.min_free_bytes - self.files.free_bytes(self.root) if self.min_free_bytes else 0
        return max(self.charged() - self.capacity_bytes, floor)

    def room(self) -> int:
        """Slots of the largest segment that may be made now, at most a regular one. Needs the growth lock."""
        usable = self.capacity_bytes - _OVERHEAD - self.charged()
        usable = min(usable, self.files.free_bytes(self.root) - self.min_free_bytes)
        slots = min(self.slots, usable // stride_of(self.block_bytes))
        while slots > 0 and segment_bytes(slots, self.block_bytes) > usable:
            slots -= max(1, (segment_bytes(slots, self.block_bytes) - usable) // (2 * stride_of(self.block_bytes)))
        return max(slots, 0)

    def segments(self) -> int:
        """Segments of all namespaces."""
        return sum(entry.name.endswith(INDEX) for home in self.homes() for entry in self.files.list(home))

    def make(self, name: str) -> Segment | None:
        """A new segment if there is room, after segments of namespaces that nobody uses have gone for it, oldest first.

        Needs the growth lock.

        Raises:
            OSError: the file system refused.
        """
        self.sweep()
        while (slots := self.room()) < max(1, self.slots // 4):
            if not self.reclaim_foreign():
                break
        if slots < 1:
            return None
        self.make_home()
        return Segment.make(self.files, self.home, name, self.fingerprint, slots, self.block_bytes, direct=self.direct)

    def make_home(self) -> None:
        """Make the namespace's directory and describe it in words."""
        self.files.make_directory(self.home)
        path = os.path.join(self.home, DESCRIPTION)
        if not os.path.exists(path):
            fd = self.files.open(path, os.O_CREAT | os.O_WRONLY)
            try:
                write_all(self.files, fd, self._description, 0)
            finally:
                self.files.close(fd)

    def destroy(self, segment: Segment) -> bool:
        """Delete an owned segment; False, and counted, if the file system refuses."""
        try:
            segment.destroy()
        except OSError as error:
            self._count("unremovable")
            self.troubles.tell("deleting", error)
            self._stuck.update(os.path.join(segment.directory, segment.name + suffix) for suffix in (INDEX, DATA))
            return False
        return True

    def is_stuck(self, name: str) -> bool:
        return os.path.join(self.home, name + INDEX) in self._stuck

    def remove_file(self, path: str) -> bool:
        """Delete a file that is no good; False, and counted once, if the file system refuses."""
        if path in self._stuck:
            return False
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._count("unremovable")
            self.troubles.tell("deleting", error)
            self._stuck.add(path)
            return False
        return True

    def remove_unfit(self, name: str) -> None:
        """Delete the files of a segment of this namespace that cannot be used, unless a process owns it."""
        self._reclaim(os.path.join(self.home, name + INDEX))

    def sweep(self) -> None:
        """Remove what a process left that was killed while making or deleting a segment. Needs the growth lock."""
        for directory in self.homes():
            names = {entry.name for entry in self.files.list(directory) if OURS.fullmatch(entry.name)}
            for name in names:
                stem, suffix = os.path.splitext(name)
                if suffix == DRAFT or (suffix == DATA and stem + INDEX not in names):
                    self.remove_file(os.path.join(directory, name))

    def homes(self) -> list[str]:
        """The directories of all namespaces. What else lies in the directory is nobody's business here."""
        entries = self.files.list(self.root)
        return [entry.path for entry in entries if HOME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]

    def reclaim_foreign(self) -> bool:
        """Delete the segment used longest ago among those of other namespaces that nobody owns. Needs the growth lock."""
        candidates: list[tuple[float, str]] = []
        for directory in self.homes():
            if directory == self.home:
                continue
            for entry in self.files.list(directory):
                if OURS.fullmatch(entry.name) and entry.name.endswith(INDEX) and entry.path not in self._stuck:
                    candidates.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        return any(self._reclaim(path) for _, path in sorted(candidates))

    def _reclaim(self, index: str) -> bool:
        try:
            fd = self.files.open(index, os.O_RDWR)
        except OSError:
            return False
        try:
            if not locks.try_lock(fd, 0):
                return False
            data = index.removesuffix(INDEX) + DATA
            if not self.remove_file(index):
                return False
            self._count("reclaimed")
            if os.path.exists(data):
                self._cut(data)
            removed = self.remove_file(data)
            self._drop_empty(os.path.dirname(index))
            return removed
        finally:
            self.files.close(fd)

    def _cut(self, path: str) -> None:
        """Give a file's space back at once, even if somebody still reads it."""
        try:
            fd = self.files.open(path, os.O_RDWR)
        except OSError:
            return
        try:
            self.files.truncate(fd)
        finally:
            self.files.close(fd)

    def _drop_empty(self, directory: str) -> None:
        """Remove a namespace's directory once only its description is left."""
        names = {entry.name for entry in self.files.list(directory)}
        if names <= {DESCRIPTION}:
            for name in names:
                self.remove_file(os.path.join(directory, name))
            with suppress(OSError):  # somebody began to use it again
                self.files.remove_directory(directory)
