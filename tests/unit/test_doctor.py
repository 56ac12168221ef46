"""The doctor, on machines made of files."""

import errno
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvloft.doctor import Harm, Plan, examine
from kvloft.tiers.disk.files import Files
from kvloft.transfer import available_memory
from kvloft.transfer.arena import total_memory

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A healthy one: 64 GiB of memory, no container limit, huge pages, one node."""
    for folder in (
        "proc",
        "sys/fs/cgroup",
        "sys/kernel/mm/transparent_hugepage",
        "sys/devices/system/node/node0",
        "dev/shm",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 68000000 kB\nMemAvailable: 67108864 kB\nHugePages_Total: 0\n")
    (tmp_path / "sys/kernel/mm/transparent_hugepage/shmem_enabled").write_text("always [advise] never\n")
    return tmp_path


def found(plan: Plan, machine: Path) -> dict[str, tuple[Harm, str, str]]:
    return {finding.check: (finding.harm, finding.found, finding.fix) for finding in examine(plan, machine)}


def test_a_healthy_machine_is_fine(machine):
    findings = found(Plan(host=16 * GIB), machine)
    for check in ("memory", "huge pages", "NUMA", "leftovers"):
        assert findings[check][0] is Harm.FINE


def test_worst_first(machine):
    harms = [finding.harm for finding in examine(Plan(host=1 << 50), machine)]
    assert harms == sorted(harms, reverse=True) and harms[0] is Harm.BROKEN


def test_memory_that_is_not_there(machine):
    harm, text, fix = found(Plan(host=100 * GIB), machine)["memory"]
    assert (harm, text, fix) == (Harm.BROKEN, "100 GiB wanted for blocks, 64 GiB is available", "give at most 62 GiB")


def test_the_container_counts(machine):
    (machine / "proc/self").mkdir()
    (machine / "proc/self/cgroup").write_text("0::/\n")
    limit(machine / "sys/fs/cgroup", 8 * GIB, used=3 * GIB)
    harm, text, fix = found(Plan(host=6 * GIB), machine)["memory"]
    assert (harm, fix) == (Harm.BROKEN, "give at most 3 GiB")
    assert "5 GiB this container has left" in text
    (machine / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert found(Plan(host=6 * GIB), machine)["memory"][0] is Harm.FINE


def test_memory_is_what_the_arena_finds(machine):
    """A limit on an outer group counts, and a page cache that can be dropped is not in the way."""
    assert available_memory(machine) == 64 * GIB
    assert total_memory(machine) == 68000000 * 1024
    (machine / "proc/self").mkdir()
    (machine / "proc/self/cgroup").write_text("0::/pod/engine\n")
    (machine / "sys/fs/cgroup/pod/engine").mkdir(parents=True)
    limit(machine / "sys/fs/cgroup/pod", 8 * GIB, used=3 * GIB, cached=GIB)
    assert available_memory(machine) == 6 * GIB
    assert total_memory(machine) == 8 * GIB
    assert "6 GiB this container has left" in found(Plan(host=7 * GIB), machine)["memory"][1]


def limit(group: Path, most: int, used: int, cached: int = 0) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


@pytest.mark.parametrize(("release", "harm"), [("0.32.1", Harm.FINE), ("0.33.0", Harm.FINE), ("0.320.0", Harm.BROKEN)])
def test_versions_of_vllm_are_those_that_serving_takes(machine, monkeypatch, release, harm):
    monkeypatch.setattr("kvloft.doctor.version", lambda name: release)
    assert found(Plan(), machine)["vLLM"][0] is harm


def test_shared_memory_is_needed_with_gpus_only(machine):
    free = os.statvfs(machine / "dev/shm").f_bavail * os.statvfs(machine / "dev/shm").f_frsize
    plan = {"host": free + GIB}
    assert found(Plan(**plan, cuda=False), machine)["/dev/shm"][0] is Harm.FINE
    harm, _, fix = found(Plan(**plan, cuda=True), machine)["/dev/shm"]
    assert harm is Harm.BROKEN and "remount,size=" in fix and "--shm-size=" in fix


def test_huge_pages_and_nodes(machine):
    (machine / "sys/kernel/mm/transparent_hugepage/shmem_enabled").write_text("always advise [never]\n")
    (machine / "sys/devices/system/node/node1").mkdir()
    findings = found(Plan(), machine)
    assert findings["huge pages"][2] == "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    assert findings["NUMA"][1].startswith("2 nodes")


def test_regions_of_dead_engines_are_found_and_those_of_live_ones_are_not(machine):
    (machine / "dev/shm/vllm_offload_dead.mmap").write_bytes(b"x" * mmap.PAGESIZE)
    (machine / "dev/shm/vllm_offload_live.mmap").write_bytes(b"x" * mmap.PAGESIZE)
    (machine / "proc/123").mkdir()
    (machine / "proc/123/maps").write_text("7f00-7f01 rw-s 00000000 00:19 42 /dev/shm/vllm_offload_live.mmap\n")
    fixes = [finding.fix for finding in examine(Plan(), machine) if finding.check == "leftovers"]
    assert fixes == [f"rm {machine}/dev/shm/vllm_offload_dead.mmap", ""]


def test_a_disk_that_is_too_small_or_cannot_be_written(machine, tmp_path):
    findings = found(Plan(disk=tmp_path / "kv", disk_capacity=1 << 60), machine)
    assert findings["disk space"][0] is Harm.BROKEN
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        harm, text, fix = found(Plan(disk=path), machine)["disk"]
        assert (harm, fix) == (Harm.BROKEN, f"use another folder than {path}")
        assert f"{tmp_path}/file is not a folder" in text


def test_looking_at_a_disk_leaves_nothing_behind(machine, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in (kept, kept / "not/yet/there"):
        assert found(Plan(disk=path), machine)["disk space"][0] is Harm.FINE
    assert not list(kept.iterdir())


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EACCES, "chown"),
        (errno.EROFS, "writable"),
        (errno.ENOSPC, "df -h"),
        (errno.EDQUOT, "quota"),
        (errno.EIO, "another folder"),
    ],
)
def test_what_mends_a_disk_depends_on_what_it_lacks(machine, tmp_path, monkeypatch, number, fix):
    def refuse(files: Files, path: str, flags: int) -> int:
        assert flags & os.O_EXCL
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(Files, "open", refuse)
    harm, text, advice = found(Plan(disk=tmp_path), machine)["disk"]
    assert harm is Harm.BROKEN and os.strerror(number) in text
    assert fix in advice and str(tmp_path) in advice


def test_a_file_system_without_direct_io_is_slow_and_keeps_no_file(machine, tmp_path, monkeypatch):
    kept, opened = tmp_path / "kept", Files.open
    kept.mkdir()

    def refuse(files: Files, path: str, flags: int) -> int:
        os.close(opened(files, path, flags & ~os.O_DIRECT))
        raise OSError(errno.EINVAL, "no O_DIRECT")

    monkeypatch.setattr(Files, "open", refuse)
    assert found(Plan(disk=kept), machine)["disk I/O"][0] is Harm.SLOW
    assert not list(kept.iterdir())


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvloft", "doctor", *args], capture_output=True, text=True, check=False)


def test_exit_codes_and_json():
    broken = run("--host", "1000TiB", "--json")
    assert broken.returncode == 1
    first = json.loads(broken.stdout)[0]
    assert first["harm"] == "broken" and set(first) == {"check", "harm", "found", "fix"}
    bad = run("--host", "lots", "--disk", "/tmp:wide")
    assert bad.returncode == 2
    assert "--disk: 'wide' is not a size" in bad.stderr and "--host: 'lots' is not a size" in bad.stderr
