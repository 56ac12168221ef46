"""Torture for the disk tier: processes that store, load and remove at full speed are killed at random, again and again.

After every kill all that is left is read: no block may be wrong, and none that was committed may be lost. Run it at length
with `python tests/disk_torture.py 200`.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from kvloft.keys import Namespace
from kvloft.tiers import Presence, Status
from kvloft.tiers.disk import DiskTier

BLOCK = 48 << 10
KEYS = 600
ROOMY = 256 << 20
"""Takes all keys several times, whoever owns the segments: nothing is evicted."""
TIGHT = 12 << 20
"""Takes a third of them: slots are written again all the time."""
_SPACES = get_context("forkserver")


def content(key: int) -> bytes:
    return random.Random(key).randbytes(1024) * (BLOCK // 1024)


def tier(place: str, capacity: int) -> DiskTier:
    return DiskTier(place, capacity, BLOCK, Namespace(model="torture"), tick=0.05, threads=4)


def work(place: str, capacity: int, seed: int, log: str) -> None:
    """Use the tier until killed. What is committed is written to the log after, what is removed before."""
    dice = random.Random(seed)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    disk = tier(place, capacity)
    blocks = [content(key) for key in range(KEYS)]
    jobs: dict[int, tuple[str, list[int], list[memoryview]]] = {}
    number = 0
    while True:
        while len(jobs) < 6:
            number += 1
            first = dice.randrange(KEYS - 16)
            keys = list(range(first, first + dice.randint(1, 16)))
            if dice.random() < 0.05:
                os.write(fd, _entry("removed", keys))
                disk.remove(keys)
            elif dice.random() < 0.6:
                jobs[number] = "store", keys, [memoryview(bytearray(blocks[key])) for key in keys]
                disk.submit_store(number, keys, jobs[number][2])
            else:
                jobs[number] = "load", keys, [memoryview(bytearray(BLOCK)) for _ in keys]
                disk.submit_load(number, keys, jobs[number][2])
        for answer in disk.poll():
            what, keys, buffers = jobs.pop(answer.job)
            good = [at for at, status in enumerate(answer.statuses) if status is Status.OK]
            if what == "store" and good:
                os.write(fd, _entry("stored", [keys[at] for at in good]))
            wrong = [keys[at] for at in good if bytes(buffers[at]) != blocks[keys[at]]] if what == "load" else []
            if wrong:
                os.write(fd, _entry("wrong", wrong))
            if capacity == ROOMY and disk.stats().counters.get("evicted"):
                os.write(fd, _entry("evicted", []))
        time.sleep(0)


def _entry(what: str, keys: list[int]) -> bytes:
    return (json.dumps([what, keys]) + "\n").encode()


def read_logs(logs: list[Path]) -> tuple[set[int], list[int]]:
    """Blocks that must be there, and those that a load got wrong. A block that was ever removed may be there or not."""
    stored: set[int] = set()
    removed: set[int] = set()
    wrong: list[int] = []
    for log in logs:
        for line in log.read_text().splitlines() if log.exists() else []:
            what, keys = json.loads(line)
            assert what != "evicted", "there was room for all blocks"
            if what == "wrong":
                wrong += keys
            else:
                (stored if what == "stored" else removed).update(keys)
    return stored - removed, wrong


def survivors(place: str, capacity: int) -> tuple[set[int], list[int]]:
    """Blocks that a fresh process finds and loads, and those it finds wrong."""
    disk = tier(place, capacity)
    keys = list(range(KEYS))
    while Presence.UNKNOWN in disk.lookup(keys):
        time.sleep(0.001)
    buffers = [memoryview(bytearray(BLOCK)) for _ in keys]
    disk.submit_load(1, keys, buffers)
    disk.drain()
    (answer,) = disk.poll()
    good = {key for key, status in zip(keys, answer.statuses, strict=True) if status is Status.OK}
    corrupt = disk.stats().counters.get("corrupt", 0)
    disk.close()
    assert not corrupt, f"{corrupt} frames that the index promised did not verify: torn blocks were committed"
    return good, [key for key in good if bytes(buffers[key]) != content(key)]


def torture(place: Path, kills: int, *, processes: int, capacity: int, seed: int) -> Counter[str]:
    """Kill `kills` processes; raises AssertionError if a block is wrong or lost."""
    dice = random.Random(seed)
    tally: Counter[str] = Counter()
    disk = str(place / "disk")
    while tally["kills"] < kills:
        logs = [place / f"{tally['kills']}-{n}.log" for n in range(processes)]
        before, _ = survivors(disk, capacity)
        workers = [_SPACES.Process(target=work, args=(disk, capacity, dice.random(), str(log)), daemon=True) for log in logs]
        for worker in workers:
            worker.start()
        for worker, log in zip(workers, logs, strict=True):
            while not log.exists() or not log.stat().st_size:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.35))
            assert worker.is_alive(), f"a worker ended by itself with {worker.exitcode}"
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            tally["kills"] += 1
        committed, wrong = read_logs(logs)
        found, spoiled = survivors(disk, capacity)
        assert not wrong and not spoiled, f"wrong blocks: {wrong} while running, {spoiled} afterwards"
        tally["committed"] += len(committed)
        tally["survivors"] += len(found)
        if capacity == ROOMY:
            lost = committed - found
            assert not lost, f"lost after commit: {sorted(lost)}"
            removed_any = {key for log in logs for key in _removed(log)}
            lost = before - found - removed_any
            assert not lost, f"lost though committed before the last start: {sorted(lost)}"
        charged = sum(path.lstat().st_blocks * 512 for path in [place / "disk", *(place / "disk").rglob("*")])
        assert charged <= capacity, f"{charged} bytes of {capacity}"
    return tally


def _removed(log: Path) -> set[int]:
    entries = map(json.loads, log.read_text().splitlines())
    return {key for what, keys in entries if what == "removed" for key in keys}


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for processes, capacity in ((1, ROOMY), (1, TIGHT), (2, ROOMY), (2, TIGHT)):
        with tempfile.TemporaryDirectory() as place:
            start = time.monotonic()
            tally = torture(Path(place), kills // 4, processes=processes, capacity=capacity, seed=kills)
            print(
                f"{processes} process(es), {capacity >> 20} MiB: {dict(tally)} in {time.monotonic() - start:.0f} s",
                flush=True,
            )


_SPACES.set_forkserver_preload(["kvloft.tiers.disk"])

if __name__ == "__main__":
    main()
