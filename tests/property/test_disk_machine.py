"""The disk tier against a dictionary: any order of stores, loads, removals, restarts, damage, by one process or two."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from disk_medium import RawDisk
from kvloft.keys import Namespace, digest_key
from kvloft.tiers import Presence, Status
from kvloft.tiers.disk import DiskTier

BLOCK = 4096
KEYS = 40
ROOMY, TIGHT = 2 << 20, 400 << 10
SPACE = Namespace(model="machine")
some_keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=8)
OK, MISS, DROPPED = Status.OK, Status.MISS, Status.DROPPED


class DiskMachine(RuleBasedStateMachine):
    """`here` is what must be there; `damaged` what is not, though a tier that has not read it since may believe so."""

    capacity = ROOMY

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.here: set[int] = set()
        self.damaged: set[int] = set()
        self.job = 0
        self.tiers = [self.open()]

    def open(self) -> DiskTier:
        tier = DiskTier(self.place, self.capacity, BLOCK, SPACE, threads=2, tick=0.01)
        while Presence.UNKNOWN in tier.lookup([0]):
            pass
        return tier

    def content(self, key: int) -> bytes:
        return bytes([key]) * BLOCK

    def statuses(self, tier: DiskTier) -> Sequence[Status]:
        assert tier.drain(30)
        (answer,) = tier.poll()
        assert answer.job == self.job and Status.FAILED not in answer.statuses, answer
        return answer.statuses

    @rule(keys=some_keys)
    def store(self, keys: list[int]) -> None:
        self.job += 1
        buffers = [memoryview(bytearray(self.content(key))) for key in keys]
        self.tiers[0].submit_store(self.job, keys, buffers)
        for key, status in zip(keys, self.statuses(self.tiers[0]), strict=True):
            if status is OK:
                self.here.update({key} - self.damaged)
            else:
                assert status is DROPPED and self.capacity == TIGHT

    @rule(keys=some_keys)
    def load(self, keys: list[int]) -> None:
        self.job += 1
        buffers = [memoryview(bytearray(BLOCK)) for _ in keys]
        self.tiers[0].submit_load(self.job, keys, buffers)
        for key, buffer, status in zip(keys, buffers, self.statuses(self.tiers[0]), strict=True):
            if status is OK:
                assert bytes(buffer) == self.content(key)
                assert key in self.here | self.damaged
                self.here.add(key)
            elif self.capacity == ROOMY:
                assert key not in self.here, f"block {key} is lost"
            else:
                self.here.discard(key)
            self.damaged.discard(key)

    @rule(keys=some_keys)
    def remove(self, keys: list[int]) -> None:
        self.tiers[0].remove(keys)
        self.here.difference_update(keys)
        self.damaged.difference_update(keys)

    @rule(keys=some_keys)
    def touch(self, keys: list[int]) -> None:
        self.tiers[0].touch(keys)

    @rule()
    def restart(self) -> None:
        self.tiers.pop(0).close()
        self.tiers.insert(0, self.open())

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.here)))
        digest = digest_key(SPACE, key)
        raw = RawDisk(self.place)
        for name in raw.frames():
            frame = bytearray(raw.read(name))
            if frame[48:80] == digest:
                frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1
                raw.write(name, bytes(frame))
                self.here.discard(key)
                self.damaged.add(key)

    @rule()
    def a_newcomer_finds_the_same(self) -> None:
        """A second tier joins, reads everything, and leaves."""
        other = self.open()
        buffers = [memoryview(bytearray(BLOCK)) for _ in range(KEYS)]
        self.job += 1
        other.submit_load(self.job, range(KEYS), buffers)
        for key, status in enumerate(self.statuses(other)):
            assert status is MISS or (key in self.here | self.damaged and bytes(buffers[key]) == self.content(key))
            assert status is OK or key not in self.here or self.capacity == TIGHT
        other.close()

    @invariant()
    def capacity_is_kept(self) -> None:
        if hasattr(self, "place"):
            assert RawDisk(self.place).charged() <= self.capacity

    def teardown(self) -> None:
        if hasattr(self, "place"):
            for tier in self.tiers:
                tier.close()
            shutil.rmtree(self.place)


class TightMachine(DiskMachine):
    capacity = TIGHT


_settings = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))


def test_roomy_disk() -> None:
    run_state_machine_as_test(DiskMachine, settings=_settings)


def test_tight_disk() -> None:
    run_state_machine_as_test(TightMachine, settings=_settings)
