"""What lies in a directory, read from outside: no tier needs to be open, and one that is open is not disturbed."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvloft.errors import ConfigError
from kvloft.tiers import frame
from kvloft.tiers.disk import locks
from kvloft.tiers.disk.files import Files, charged_bytes
from kvloft.tiers.disk.locks import LockFile
from kvloft.tiers.disk.records import BROKEN, CONDEMNED, Array, is_sound
from kvloft.tiers.disk.segment import DATA, INDEX, Segment, Unfit, read_geometry
from kvloft.tiers.disk.space import DESCRIPTION, HOME, OURS, charged_for

Tell = Callable[[int, int], None]
"""Told how many blocks are done, of how many."""


@dataclass(slots=True)
class NamespaceReport:
    """One namespace of a directory. Times are seconds since 1970, sizes bytes.

    `damaged` and `unfit` name what is wrong: frames that did not verify by their defect, files that are no segments by path.
    """

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    in_use: bool = False
    """A running process owns a part of it."""
    segments: int = 0
    slots: int = 0
    blocks: int = 0
    block_bytes: int = 0
    charged_bytes: int = 0
    oldest: float | None = None
    median_age: float | None = None
    newest: float | None = None
    last_used: float | None = None
    hits: int = 0
    never_hit: int = 0
    broken_slots: int = 0
    unfit: dict[str, str] = field(default_factory=dict)
    verified: int | None = None
    damaged: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """A directory. `other_bytes` is what the file system charges for files that belong to no namespace."""

    path: str
    charged_bytes: int
    other_bytes: int
    processes: int
    namespaces: list[NamespaceReport]


def survey(path: str, *, verify: bool = False, tell: Tell | None = None, files: Files | None = None) -> Report:
    """Look at all namespaces of a directory; with `verify`, read and check every block.

    Raises:
        ConfigError: it is no directory, or cannot be read.
    """
    files = files or Files()
    homes: list[str] = []
    reports: list[NamespaceReport] = []
    for home in _homes(path):
        with suppress(FileNotFoundError):  # somebody has just removed it
            reports.append(_report(files, home))
            homes.append(home)
    if verify:
        total, done = sum(report.blocks for report in reports), 0
        for home, report in zip(homes, reports, strict=True):
            report.verified, damaged = 0, Counter[str]()
            for defect in _verify(files, home):
                report.verified += defect is None
                damaged.update([defect] if defect else [])
                done += 1
                if tell is not None:
                    tell(done, total)
            report.damaged = dict(damaged)
    charged = charged_for(files, path)
    other = charged - sum(report.charged_bytes for report in reports)
    return Report(path, charged, other, _processes(files, path), reports)


def prune(path: str, unused_for: float, files: Files | None = None) -> list[NamespaceReport]:
    """Delete namespaces that no running process owns a part of and no block of which was used for `unused_for` seconds.

    Returns:
        Those that were deleted.

    Raises:
        ConfigError: the directory cannot be changed, or another process is changing it now.
    """
    files = files or Files()
    deadline = time.time() - unused_for
    pruned: list[NamespaceReport] = []
    with _growth_lock(files, path):
        for home in _homes(path):
            report = _report(files, home)
            if not report.in_use and (report.last_used or 0.0) <= deadline and _delete(files, home):
                pruned.append(report)
    return pruned


def _homes(path: str) -> list[str]:
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the directory of a disk tier") from error
    return [entry.path for entry in entries if HOME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]


def _report(files: Files, home: str) -> NamespaceReport:
    report = NamespaceReport(os.path.basename(home), _facts(home))
    names: dict[str, int] = {}
    for entry in files.list(home):
        with suppress(FileNotFoundError):  # a running tier makes and deletes segments
            names[entry.name] = charged_bytes(entry.stat(follow_symlinks=False))
    report.charged_bytes = charged_bytes(files.stat(home)) + sum(names.values())
    stored: list[Array] = []
    used: list[Array] = []
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        if not OURS.fullmatch(name) or (suffix == DATA and stem + INDEX in names):
            continue
        if suffix != INDEX:
            report.unfit[os.path.join(home, name)] = "left behind by a process that was killed"
            continue
        try:
            segment = open_segment(files, home, stem)
        except FileNotFoundError:
            continue  # its owner has just deleted it
        except (OSError, Unfit) as error:
            report.unfit[os.path.join(home, name)] = str(error)
            continue
        report.in_use |= segment.is_taken()
        report.segments += 1
        report.slots += segment.slots
        report.block_bytes = segment.block_bytes
        records, heat = segment.read_records(), segment.read_heat()
        segment.close()
        sound = is_sound(records, segment.block_bytes) & (heat["hits"] != CONDEMNED)
        report.broken_slots += int((records["state"] == BROKEN).sum())
        report.hits += int(heat["hits"][sound].sum())
        report.never_hit += int((heat["hits"][sound] == 0).sum())
        stored.append(records["stored"][sound])
        used.append(np.maximum(heat["used"][sound], records["stored"][sound]))
    times = np.concatenate(stored) if stored else np.zeros(0)
    report.blocks = len(times)
    if len(times):
        report.oldest, report.newest = float(times.min()), float(times.max())
        report.median_age = time.time() - float(np.median(times))
        report.last_used = float(np.concatenate(used).max())
    return report


def _facts(home: str) -> dict[str, Any]:
    try:
        with open(os.path.join(home, DESCRIPTION), encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def open_segment(files: Files, home: str, name: str) -> Segment:
    """A segment of whatever namespace, for reading.

    Raises:
        Unfit: it is no segment.
        OSError: it cannot be read.
    """
    fd = files.open(os.path.join(home, name + INDEX), os.O_RDONLY)
    try:
        fingerprint, block_bytes, _ = read_geometry(files, fd)
    finally:
        files.close(fd)
    if fingerprint.hex()[:32] != os.path.basename(home):
        raise Unfit(f"{name}{INDEX}: belongs to another namespace than its directory")
    return Segment.open(files, home, name, fingerprint, block_bytes, direct=False, writable=False)


def _verify(files: Files, home: str) -> Iterator[frame.Defect | None]:
    """Check all blocks of a namespace. A block that its owner replaced meanwhile is passed over."""
    for entry in sorted(files.list(home), key=lambda entry: entry.name):
        stem, suffix = os.path.splitext(entry.name)
        if suffix != INDEX:
            continue
        try:
            segment = open_segment(files, home, stem)
        except (OSError, Unfit):
            continue
        payload = memoryview(bytearray(segment.block_bytes))
        records = segment.read_records()
        for slot in np.flatnonzero(is_sound(records, segment.block_bytes)).tolist():
            digest = records["digest"][slot].tobytes()
            try:
                header = segment.read_frame(slot, payload)
            except OSError:
                header = b""
            defect = frame.check(header, payload, segment.fingerprint, digest)
            if defect is None or segment.promises(slot, digest):
                yield defect
        segment.close()


def _processes(files: Files, path: str) -> int:
    """Tiers that have the directory open now."""
    try:
        fd = files.open(os.path.join(path, LockFile.NAME), os.O_RDONLY)
    except OSError:
        return 0
    try:
        return sum(locks.is_locked(fd, byte) for byte in locks.MEMBERS)
    finally:
        files.close(fd)


@contextmanager
def _growth_lock(files: Files, path: str) -> Iterator[None]:
    try:
        fd = files.open(os.path.join(path, LockFile.NAME), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; pruning needs the right to write there") from error
    try:
        if not locks.try_lock(fd, locks.GROWTH):
            raise ConfigError(f"{path}: another process is changing it just now; try again")
        yield
    finally:
        files.close(fd)


def _delete(files: Files, home: str) -> bool:
    """Delete a namespace's files; False if a part of it has an owner after all, or could not be deleted."""
    held: list[int] = []
    try:
        names = [entry.name for entry in files.list(home)]
        for name in names:
            if name.endswith(INDEX):
                held.append(files.open(os.path.join(home, name), os.O_RDWR))
                if not locks.try_lock(held[-1], 0):
                    return False
        for name in sorted(names, key=lambda name: not name.endswith(INDEX)):
            if OURS.fullmatch(name) or name == DESCRIPTION:
                files.unlink(os.path.join(home, name))
        files.remove_directory(home)
    except OSError:
        return False
    finally:
        for fd in held:
            files.close(fd)
    return True
