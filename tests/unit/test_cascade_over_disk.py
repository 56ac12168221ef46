"""The cascade over real disk tiers: what it asks of the scheduler's thread, and what restarts and trouble leave."""

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvloft.keys import Namespace
from kvloft.pool import BlockPool, Lookup
from kvloft.request import Request
from kvloft.tiers.base import Buffer, Tier
from kvloft.tiers.disk import DiskTier, Files
from kvloft.tiers.wrappers import Slow
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import CascadeConfig
from sleepy_io import sleepy_io  # noqa: F401

BLOCK = 8192
SLOTS = 32
KEYS = [b"key%d" % at for at in range(24)]


class Server:
    """A host arena with a cascade over it, driven by this thread."""

    def __init__(self, tier: Tier, **config: Any) -> None:
        self.arena = np.zeros((SLOTS, BLOCK), dtype=np.uint8)
        self.pool = BlockPool(SLOTS)
        self.cascade = Cascade(self.pool, self.view, [tier], CascadeConfig(**config))

    def view(self, slot: int) -> Buffer:
        return memoryview(self.arena[slot])

    def store(self, name: str, keys: Sequence[bytes]) -> None:
        request = Request(name)
        plan = self.pool.prepare_store(keys, request)
        assert plan is not None
        for key, slot in zip(plan.keys, plan.slots, strict=True):
            self.arena[slot] = content(key)
        self.cascade.stored(self.pool.complete_store(plan.keys, request))
        self.cascade.finish(request)
        self.pool.finish(request)

    def settle(self) -> None:
        """Step until nothing is under way."""
        until = time.monotonic() + 60
        while self.cascade.has_pending_work() and time.monotonic() < until:
            self.cascade.step()
            time.sleep(0.001)
        assert not self.cascade.has_pending_work()

    def load(self, name: str, keys: Sequence[bytes]) -> int:
        """How many leading blocks were loaded, each with the right bytes."""
        request = Request(name)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = [self.cascade.lookup(key, request) for key in keys]
            hits = next((at for at, answer in enumerate(found) if answer is Lookup.MISS), len(keys))
            if Lookup.PENDING not in found[:hits]:
                break
            self.cascade.step()
            time.sleep(0.001)
        plan = self.pool.prepare_load(keys[:hits], request)
        self.cascade.loading(plan.keys, request)
        for key, slot in zip(plan.keys, plan.slots, strict=True):
            assert (self.arena[slot] == content(key)).all(), f"{key!r} has wrong bytes"
        self.pool.complete_load(plan.keys, request)
        self.cascade.finish(request)
        self.pool.finish(request)
        return hits


def content(key: bytes) -> np.ndarray:
    return np.random.default_rng(list(key)).integers(0, 256, BLOCK, dtype=np.uint8)


def open_tier(path: Path, capacity: int = 1 << 24, files: Files | None = None) -> DiskTier:
    return DiskTier(path, capacity, BLOCK, Namespace(model="m"), files=files, tick=0.05)


def test_no_call_on_the_schedulers_thread_does_io(tmp_path: Path, io: list[tuple[str, int]]) -> None:
    server = Server(open_tier(tmp_path))
    here = threading.get_ident()
    io.clear()
    server.store("first", KEYS)
    server.settle()
    server.store("pushes them out", [b"other%d" % at for at in range(SLOTS)])
    server.settle()
    assert server.load("reads", KEYS) > 0
    server.cascade.reset()
    assert server.load("reads again", KEYS) > 0
    server.cascade.stats()
    mine = {what for what, thread in io if thread == here}
    others = {what for what, thread in io if thread != here}
    assert mine == set()
    assert {"Files.read_slots", "Files.write_slots"} <= others, "the disk was not used, so nothing was proved"
    server.cascade.close()


def test_a_restart_finds_what_was_written(tmp_path: Path) -> None:
    server = Server(open_tier(tmp_path))
    server.store("before", KEYS[:16])
    server.settle()
    assert server.cascade.close()
    again = Server(open_tier(tmp_path))
    assert again.load("after", KEYS) == 16
    assert again.cascade.close()


def test_flipped_bytes_are_misses(tmp_path: Path) -> None:
    server = Server(open_tier(tmp_path))
    server.store("before", KEYS[:8])
    server.settle()
    assert server.cascade.close()
    flipped = 0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            at = data.find(content(KEYS[0]).tobytes())
            if at >= 0:
                data[at + 100] ^= 1
                path.write_bytes(data)
                flipped += 1
    assert flipped == 1
    again = Server(open_tier(tmp_path))
    assert again.load("after", KEYS[:8]) == 0
    assert again.load("the others", KEYS[1:8]) == 7
    again.cascade.close()


def test_a_disk_that_hangs_and_comes_back(tmp_path: Path) -> None:
    server = Server(open_tier(tmp_path))
    server.store("before", KEYS[:8])
    server.settle()
    server.cascade.close()
    slow = Slow(open_tier(tmp_path), math.inf)
    server = Server(slow, hang_seconds=0.4, pending_seconds=0.6, breaker_seconds=0.05)
    assert server.load("while it hangs", KEYS[:8]) == 0
    for at in range(40):
        server.store(f"s{at}", [b"s%d-%d" % (at, n) for n in range(4)])
        server.cascade.step()
    slow.delay = 0.0
    slow.release()
    until = time.monotonic() + 30
    found = 0
    while (found < 8 or server.pool.stats().writing) and time.monotonic() < until:
        found = server.load(f"at {time.monotonic()}", KEYS[:8])
        server.cascade.step()
        time.sleep(0.01)
    assert found == 8
    assert server.pool.stats().writing == 0
    assert server.cascade.close()
