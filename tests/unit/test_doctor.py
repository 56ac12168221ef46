"""The doctor, on machines made of files."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvloft.doctor import Harm, Plan, examine

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
    (machine / "sys/fs/cgroup/memory.max").write_text(f"{8 * GIB}\n")
    (machine / "sys/fs/cgroup/memory.current").write_text(f"{3 * GIB}\n")
    harm, text, fix = found(Plan(host=6 * GIB), machine)["memory"]
    assert (harm, fix) == (Harm.BROKEN, "give at most 3 GiB")
    assert "5 GiB this container has left" in text
    (machine / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert found(Plan(host=6 * GIB), machine)["memory"][0] is Harm.FINE


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
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "kv").iterdir())
    (tmp_path / "file").write_text("")
    assert found(Plan(disk=tmp_path / "file"), machine)["disk"][0] is Harm.BROKEN


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
