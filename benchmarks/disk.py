"""The disk tier side by side with fio, with vLLM's file tier and with other layouts, on one directory, as ratios.

    python benchmarks/disk.py [DIR] [--rounds 5] [--amount 512MiB]    # bandwidth; fio and vLLM are left out if not installed
    python benchmarks/disk.py [DIR] --start 1000000                   # how long it takes to find so many blocks at the start
    python benchmarks/disk.py --short                                 # a little of both, in half a minute

DIR is on the disk to measure; without one, it is the current directory's. Contenders take turns, round after round, and each
round another one goes first, for a disk is slower after some than after others. What is reported is the median over the
rounds of each one's ratio to fio in the same round, or to the bare file where fio is not installed: the machine's noise then
hits all alike. All use O_DIRECT, the same block size and number of blocks in flight.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import xxhash

from kvloft.config import format_size, parse_size
from kvloft.keys import Namespace
from kvloft.tiers import Presence
from kvloft.tiers.bandwidth import load_all, make_buffers, store_all
from kvloft.tiers.disk import DiskTier, Files
from kvloft.tiers.disk.files import PAGE, aligned
from kvloft.tiers.disk.records import PRESENT, RECORD, _check_of
from kvloft.tiers.disk.segment import Segment, stride_of

SPACE = Namespace(model="benchmark")
PHASES = ("store", "load", "overwrite")
CASES = ((2 << 20, 8, 1), (2 << 20, 16, 4), (256 << 10, 8, 1), (256 << 10, 32, 8))
"""Bytes a block, blocks in flight, blocks a job."""
Rates = dict[str, float]
"""Bytes a second by phase."""


def cpu() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


class Case:
    def __init__(self, block: int, depth: int, job: int, amount: int) -> None:
        self.block, self.depth, self.job = block, depth, job
        self.blocks = amount // block
        self.buffers = make_buffers(block, depth)
        self.keys = [[b"%s %d" % (name, n) for n in range(self.blocks)] for name in (b"first", b"second")]

    def __str__(self) -> str:
        return f"{format_size(self.block)}, {self.depth} in flight, {self.job} a job"


def by_kvloft(place: Path, case: Case) -> Rates:
    """The segments are made before the clock starts, like fio's file and the bare one."""
    capacity = int(case.blocks * stride_of(case.block) * 1.1) + (8 << 20)
    tier = DiskTier(place, capacity, case.block, SPACE, direct=True)
    tier._upkeep.grow(case.blocks)
    before = cpu()
    runs = [
        store_all(tier, case.keys[0], case.buffers, case.job),
        load_all(tier, case.keys[0], case.buffers, case.job),
        store_all(tier, case.keys[1], case.buffers, case.job),
    ]
    tier.close()
    case.cpu = (cpu() - before) / (3 * case.blocks) * 1e6  # type: ignore[attr-defined]
    return {phase: run.rate for phase, run in zip(PHASES, runs, strict=True)}


def by_fio(place: Path, case: Case) -> Rates:
    """libaio keeps `depth` requests in flight from one process. The file is preallocated, as fio does by itself."""
    rates = {}
    for phase, kind in zip(PHASES, ("write", "read", "write"), strict=True):
        command = ["fio", "--name=t", f"--directory={place}", f"--bs={case.block}", f"--rw={kind}", "--direct=1"]
        command += [
            "--ioengine=libaio",
            f"--iodepth={case.depth}",
            f"--size={case.blocks * case.block}",
            "--output-format=json",
        ]
        done = subprocess.run(
            [*command, f"--overwrite={int(phase == 'overwrite')}"], capture_output=True, text=True, check=True
        )
        rates[phase] = float(json.loads(done.stdout)["jobs"][0]["read" if kind == "read" else "write"]["bw_bytes"])
    return rates


def by_vllm(place: Path, case: Case) -> Rates:
    """vLLM's `FileSystemTierManager` with its default 16 + 16 threads. It has no capacity: nothing is overwritten."""
    from vllm.v1.kv_offload.tiering.base import TransferJob
    from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

    flat = memoryview(case.buffers[0].obj)
    view = flat.cast("B", (case.depth, case.block))
    parallel = SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)
    config = SimpleNamespace(
        groups=[], parallel=parallel, canonical_layout=False, replicated_layout=False, kv_cache_layout=None,
        model=SimpleNamespace(name="benchmark", dtype="bfloat16"), cache=SimpleNamespace(tokens_per_hash=16),
    )  # fmt: skip
    spec = SimpleNamespace(config=config, blocks_per_chunk=1)
    manager = FileSystemTierManager(spec, view, "fs", str(place))  # type: ignore[arg-type]
    names = [xxhash.xxh3_128_digest(key) * 2 + bytes(4) for key in case.keys[0]]
    rates = {}
    for phase, submit in (("store", manager.submit_store), ("load", manager.submit_load)):
        idle, busy, at, start = list(range(case.depth // case.job)), {}, 0, time.perf_counter()
        while busy or at < len(names):
            while idle and at < len(names):
                lane = busy[at] = idle.pop()
                some = names[at : at + case.job]
                chunks = np.arange(lane * case.job, lane * case.job + len(some))
                submit(TransferJob(at, some, chunks, phase == "load", None))  # type: ignore[arg-type]
                at += len(some)
            answers = list(manager.get_finished_jobs())
            for answer in answers:
                assert answer.success
                idle.append(busy.pop(answer.job_id))
            if not answers:
                time.sleep(0.0001)
        rates[phase] = case.blocks * case.block / (time.perf_counter() - start)
    manager.shutdown()
    return rates


def by_bare_file(place: Path, case: Case) -> Rates:
    """A preallocated file and positioned vectored calls from as many threads, without index, checksum and jobs."""
    fd = os.open(place / "slots", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    stride = stride_of(case.block)
    os.posix_fallocate(fd, 0, case.blocks * stride)
    pages = aligned(PAGE * case.depth)

    def move(call: Callable[..., int], at: int) -> None:
        lane = at % case.depth
        call(fd, [pages[lane * PAGE : (lane + 1) * PAGE], case.buffers[lane]], at * stride)

    rates = {}
    for phase, call in zip(PHASES, (os.pwritev, os.preadv, os.pwritev), strict=True):
        rates[phase] = _in_threads(case, lambda at, call=call: move(call, at))
    os.close(fd)
    return rates


def by_file_per_block(place: Path, case: Case) -> Rates:
    """One file a block in 4,096 hashed directories: written under another name, then renamed. Overwriting is deleting the
    oldest and writing anew."""
    pages = aligned(PAGE * case.depth)

    def path(key: bytes) -> Path:
        digest = xxhash.xxh3_128_hexdigest(key)
        return place / digest[:3] / digest

    def store(key: bytes, at: int) -> None:
        lane, target = at % case.depth, path(key)
        target.parent.mkdir(exist_ok=True)
        fd = os.open(f"{target}.tmp", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        os.pwritev(fd, [pages[lane * PAGE : (lane + 1) * PAGE], case.buffers[lane]], 0)
        os.close(fd)
        os.rename(f"{target}.tmp", target)

    def load(key: bytes, at: int) -> None:
        fd = os.open(path(key), os.O_RDONLY | os.O_DIRECT)
        os.preadv(fd, [pages[at % case.depth * PAGE :][:PAGE], case.buffers[at % case.depth]], 0)
        os.close(fd)

    def replace(at: int) -> None:
        path(case.keys[0][at]).unlink()
        store(case.keys[1][at], at)

    steps: Sequence[Callable[[int], None]] = (
        lambda at: store(case.keys[0][at], at), lambda at: load(case.keys[0][at], at), replace,
    )  # fmt: skip
    return {phase: _in_threads(case, step) for phase, step in zip(PHASES, steps, strict=True)}


def _in_threads(case: Case, step: Callable[[int], None]) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(min(case.depth, 8)) as pool:
        for done in [pool.submit(step, at) for at in range(case.blocks)]:
            done.result()
    return case.blocks * case.block / (time.perf_counter() - start)


def compare(directory: Path, amount: int, rounds: int, cases: Sequence[tuple[int, int, int]]) -> None:
    contenders: dict[str, Callable[[Path, Case], Rates]] = {
        "fio": by_fio, "kvloft": by_kvloft, "vLLM": by_vllm, "bare file": by_bare_file, "file per block": by_file_per_block,
    }  # fmt: skip
    base = "fio" if shutil.which("fio") else "bare file"
    if base != "fio":
        print("fio is not installed: ratios are to the bare file")
        del contenders["fio"]
    for block, depth, job in cases:
        case = Case(block, depth, job, amount)
        seen: dict[str, list[Rates]] = {name: [] for name in contenders}
        for turn in range(rounds):
            order = list(contenders.items())
            for name, contender in order[turn % len(order) :] + order[: turn % len(order)]:
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    try:
                        seen[name].append(contender(Path(place), case))
                    except ImportError:
                        del contenders[name], seen[name]
        print(f"\n{case}; kvloft's CPU {case.cpu:.0f} us a block and pass")  # type: ignore[attr-defined]
        print(f"{'':16}" + "".join(f"{phase:>24}" for phase in PHASES))
        for name, rates in seen.items():
            cells = []
            for phase in PHASES:
                if phase not in rates[0]:
                    cells.append("-")
                    continue
                ratio = statistics.median(r[phase] / f[phase] for r, f in zip(rates, seen[base], strict=True))
                cells.append(f"{statistics.median(r[phase] for r in rates) / 1e9:.2f} GB/s {ratio:5.0%}")
            print(f"{name:16}" + "".join(f"{cell:>24}" for cell in cells))


def checksums(total: int, block: int = 256 << 10) -> None:
    """GB/s of one core over `total` bytes; 256 MiB are more than caches hold."""
    buffers = make_buffers(block, total // block)
    functions: dict[str, Callable[[memoryview], object]] = {"xxh3-64": xxhash.xxh3_64_intdigest, "zlib crc32": zlib.crc32}
    try:
        import google_crc32c

        functions["crc32c"] = lambda buffer: google_crc32c.value(bytes(buffer))
        functions["crc32c, no copy"] = lambda buffer: google_crc32c.extend(0, buffer)
    except ImportError:
        print("google-crc32c is not installed")
    for name, function in functions.items():
        times = []
        for _ in range(5):
            start = time.perf_counter()
            try:
                for buffer in buffers:
                    function(buffer)
            except TypeError as error:
                print(f"{name}: {error}")
                break
            times.append(time.perf_counter() - start)
        if times:
            print(f"{name:16} {len(buffers) * block / min(times) / 1e9:6.1f} GB/s")


def start_up(directory: Path, blocks: int, block: int = 64 << 10) -> None:
    """Write indices that promise `blocks` blocks over files without content, and open a tier on them."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        capacity = int(1.1 * blocks * stride_of(block))
        tier = DiskTier(place, capacity, block, SPACE)
        home, fingerprint = tier._space.home, SPACE.fingerprint
        tier.close()
        keys = list(range(blocks))
        digest = SPACE.digester()
        per_segment = -(-blocks // 64)
        files = Sparse()
        for first in range(0, blocks, per_segment):
            some = keys[first : first + per_segment]
            segment = Segment.make(files, home, os.urandom(8).hex(), fingerprint, len(some), block, direct=True)
            records = np.zeros(len(some), RECORD)
            records["digest"] = np.array([digest(key) for key in some], "V32")
            records["stored"], records["length"], records["state"] = time.time() - 1e6, block, PRESENT
            records["check"] = _check_of(records, 0)
            segment.write_records(0, records.tobytes())
            segment.close()
        for policy in ("lru", "arc"):
            waits, before, start = [], cpu(), time.perf_counter()
            tier = DiskTier(place, capacity, block, SPACE, policy=policy, open_timeout=600)
            made = time.perf_counter() - start
            while Presence.UNKNOWN in tier.lookup([*keys[:100], -1]):
                then = time.perf_counter()
                tier.lookup(keys[:64])
                waits.append(time.perf_counter() - then)
                time.sleep(0.001)
            took = time.perf_counter() - start
            assert tier.lookup(keys).count(Presence.HIT) == blocks
            waits.sort()
            print(
                f"{policy}: {blocks:,} blocks found in {took:.1f} s ({cpu() - before:.1f} s of CPU); the constructor took "
                f"{made * 1e3:.0f} ms; a lookup of 64 blocks meanwhile: median {waits[len(waits) // 2] * 1e6:.0f} us, "
                f"99% {waits[int(len(waits) * 0.99)] * 1e3:.1f} ms, worst {waits[-1] * 1e3:.1f} ms"
            )
            tier.close()


class Sparse(Files):
    """Gives files their size without charging for it."""

    def allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", nargs="?", type=Path, default=Path())
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--amount", type=parse_size, default=512 << 20)
    arguments.add_argument("--short", action="store_true", help="one round of 16 MiB, two cases, a start with 10,000 blocks")
    arguments.add_argument("--start", type=int, metavar="BLOCKS", help="measure the start instead")
    given = arguments.parse_args()
    if given.start:
        start_up(given.directory, given.start)
    elif given.short:
        checksums(16 << 20)
        compare(given.directory, 16 << 20, 1, CASES[::2])
        start_up(given.directory, 10_000)
    else:
        checksums(256 << 20)
        compare(given.directory, given.amount, given.rounds, CASES)


if __name__ == "__main__":
    main()
