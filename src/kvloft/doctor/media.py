"""What is wrong with the folders of disk tiers, and with shared stores."""

import errno
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from kvloft.config import format_size
from kvloft.doctor.findings import Disk, Finding, Harm, Plan
from kvloft.errors import ConfigError, KvloftError, MissingExtra
from kvloft.keys import Namespace
from kvloft.tiers.bandwidth import load_all, make_buffers, store_all
from kvloft.tiers.base import Presence, Status, Tier
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.disk.files import Files, takes_direct
from kvloft.tiers.settings import TYPES, TierPlan

_OTHER_FOLDER = "use another folder than {}"
_DISK_FIXES = {
    errno.EACCES: "chown $(id -u) {0}   (make it first, if it is not there: mkdir -p {0})",
    errno.EPERM: "chown $(id -u) {0}   (make it first, if it is not there: mkdir -p {0})",
    errno.EROFS: "mount its file system writable, or use another folder than {}",
    errno.ENOSPC: "df -h {}; remove files you do not need",
    errno.EDQUOT: "quota; remove files you do not need, or use another folder than {}",
}
"""What to do about a folder that cannot be written, by what the system says."""
_BLOCK = 1 << 20
_DEPTH = 32
_INODES = 1000
_PATIENCE = 10.0
"""Seconds in which a store must have answered."""


def disks(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether blocks can be kept there, how many, and how fast they come back."""
    for disk in plan.disks:
        yield from _disk(plan, disk)


def _disk(plan: Plan, disk: Disk) -> Iterator[Finding]:
    path = disk.path.absolute()
    try:
        # The folder itself is made when the tier is: this only looks.
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{there} is not a folder")
        direct = takes_direct(Files(), str(there))
        volume = os.statvfs(there)
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror}"
        yield Finding("disk", Harm.BROKEN, found, _DISK_FIXES.get(error.errno or 0, _OTHER_FOLDER).format(path))
        return
    if direct:
        yield Finding("disk I/O", Harm.FINE, f"{path} takes O_DIRECT")
    else:
        found = f"{path} does not take O_DIRECT: blocks go through the page cache and compete with host memory"
        yield Finding("disk I/O", Harm.SLOW, found, "use a folder on ext4 or XFS on a local NVMe drive")
    free = volume.f_bavail * volume.f_frsize
    room = free + _held(path) if disk.capacity else free
    if disk.capacity and disk.capacity > room:
        found = f"{format_size(disk.capacity)} wanted, {format_size(max(free, 1))} free in {path}"
        yield Finding("disk space", Harm.BROKEN, found, f"use a capacity of at most {format_size(max(room, 1), down=True)}")
    else:
        yield Finding("disk space", Harm.FINE, f"{format_size(max(free, 1))} free in {path}")
    if volume.f_files and volume.f_favail < _INODES:
        fix = f"df -i {path}; remove files you do not need"
        yield Finding("inodes", Harm.BROKEN, f"{volume.f_favail} left in {path}", fix)
    else:
        left = f"{volume.f_favail:,} left" if volume.f_files else "as many as there is room for"
        yield Finding("inodes", Harm.FINE, f"{left} in {path}")
    if plan.probe and free > 4 * plan.probe:
        yield _speed(plan, path, there)


def _held(path: Path) -> int:
    """Bytes that a tier in this folder takes already: they count as free for it."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0


def _speed(plan: Plan, path: Path, there: Path) -> Finding:
    """What a tier in a folder of its own there writes and reads, against what the engine computes."""
    blocks = max(plan.probe // _BLOCK, 1)
    keys = [f"{at}" for at in range(blocks)]
    buffers = make_buffers(_BLOCK, min(_DEPTH, blocks))
    with tempfile.TemporaryDirectory(prefix="kvloft-doctor-", dir=there) as folder:
        tier = DiskTier(folder, int(1.2 * plan.probe) + (16 << 20), _BLOCK, Namespace(model="kvloft doctor"))
        try:
            stored, loaded = store_all(tier, keys, buffers), load_all(tier, keys, buffers)
        except KvloftError as error:
            return Finding("disk speed", Harm.BROKEN, f"{path}: {error}", f"dmesg | tail; {_OTHER_FOLDER.format(path)}")
        finally:
            tier.close()
    if loaded.statuses[Status.OK] < blocks:
        lost = f"{blocks - loaded.statuses[Status.OK]} of {blocks} blocks did not come back"
        return Finding("disk speed", Harm.BROKEN, f"{path}: {lost}", f"dmesg | tail; {_OTHER_FOLDER.format(path)}")
    found = f"{path} writes {format_size(round(stored.rate))}/s and reads {format_size(round(loaded.rate))}/s"
    found += "" if tier.direct else ", from the page cache"
    return _against_computing(plan, "disk speed", found, loaded.rate, f"kvloft bench disk {there}")


def _against_computing(plan: Plan, check: str, found: str, rate: float, measure: str) -> Finding:
    if plan.bytes_per_token is None or plan.prefill is None:
        return Finding(check, Harm.FINE, found)
    tokens = rate / plan.bytes_per_token
    found += f": {tokens:,.0f} tokens/s, computing gives {plan.prefill:,.0f}"
    if tokens >= plan.prefill:
        return Finding(check, Harm.FINE, found)
    fix = f"use a faster one, or several as one (RAID 0), or leave it out; measure with: {measure}"
    return Finding(check, Harm.SLOW, f"{found}; loads would be left alone", fix)


# Shared stores.


def stores(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether they answer, and how soon."""
    for store in plan.stores:
        yield _store(plan, store)


def _store(plan: Plan, store: TierPlan) -> Finding:
    name, url = f"store {store.name}", str(store.settings.get("url", ""))
    block = make_buffers(_BLOCK, 1)[0]
    try:
        # Lookups are not cut short: how long they take is what is to be known.
        patient = store._replace(settings={**store.settings, "lookup_timeout": _PATIENCE})
        tier = patient.open(_BLOCK, Namespace(model="kvloft doctor", extra={"run": secrets.token_hex(8)}), block)
    except MissingExtra as error:
        return Finding(name, Harm.BROKEN, f"{url}: {error}", f"pip install 'kvloft[{error.extra}]'")
    except ConfigError as error:
        return Finding(name, Harm.BROKEN, f"{url}: {error}", "kvloft config --explain")
    except KvloftError as error:
        return Finding(name, Harm.BROKEN, f"{url}: {error}", _reach(store, url))
    try:
        return _latency(plan, store, tier, url, block)
    finally:
        tier.remove(["block"])
        tier.close()


def _latency(plan: Plan, store: TierPlan, tier: Tier, url: str, block: memoryview) -> Finding:
    name = f"store {store.name}"
    written, error = _timed(tier, lambda: tier.submit_store(0, ["block"], [block]))
    if written is None:
        return Finding(name, Harm.BROKEN, f"{url}: {error}", _reach(store, url))
    asked = _asked(tier)
    read, error = _timed(tier, lambda: tier.submit_load(1, ["block"], [block]))
    if read is None:
        found = f"{url}: took a block of {format_size(_BLOCK)}, but did not give it back: {error}"
        return Finding(name, Harm.BROKEN, found, _reach(store, url))
    found = f"{url} answers in {asked * 1e3:.2g} ms, writes {format_size(_BLOCK)} in {written * 1e3:.2g} ms, reads it in "
    found += f"{read * 1e3:.2g} ms"
    usual = next(field.default for field in TYPES[store.type].fields if field.name == "lookup_timeout")
    limit = store.settings.get("lookup_timeout", usual)
    if asked > limit:
        fix = f"kvloft config --set {store.name}.lookup_timeout={2 * asked:.2g} ...   (or use a store nearer by)"
        return Finding(name, Harm.SLOW, f"{found}; after {limit:.3g} s without an answer blocks count as missing", fix)
    return Finding(name, Harm.FINE, found)


def _timed(tier: Tier, submit: Callable[[], None]) -> tuple[float | None, str]:
    """Seconds that a job took; None and the reason if it failed."""
    start = time.perf_counter()
    try:
        submit()
    except KvloftError as error:
        return None, str(error)
    while not (answers := tier.poll()):
        if time.perf_counter() - start > _PATIENCE:
            return None, f"no answer in {_PATIENCE:.0f} s"
        time.sleep(0.0002)
    [status] = answers[0].statuses
    if status is Status.OK:
        return time.perf_counter() - start, ""
    return None, answers[0].error or {Status.DROPPED: "there is no room for a block", Status.MISS: "it is gone"}.get(
        status, "no reason given"
    )


def _asked(tier: Tier) -> float:
    """Seconds until a tier knows whether it has a block that it was never asked for, once it has a connection."""
    start = 0.0
    for key in ("another block", "a third one"):
        start = time.perf_counter()
        while Presence.UNKNOWN in tier.lookup([key]) and time.perf_counter() - start < _PATIENCE:
            time.sleep(0.0002)
    return time.perf_counter() - start


def _reach(store: TierPlan, url: str) -> str:
    """A command that shows whether the store can be reached without kvloft."""
    parts = urlsplit(url)
    if store.type == "redis":
        return f"redis-cli -u {url} ping"
    if store.type == "mooncake":
        return f"nc -vz {parts.hostname} {parts.port}"
    if parts.scheme == "file":
        return f"ls -ld {parts.path}"
    return {"s3": f"aws s3 ls {url}", "s3a": f"aws s3 ls {url}", "gs": f"gcloud storage ls {url}"}.get(
        parts.scheme, f"curl -v {url}"
    )
