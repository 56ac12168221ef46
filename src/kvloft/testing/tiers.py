"""The duties of a tier (see `kvloft.tiers.base`), for any tier.

class TestMyTier(TierSuite):
    def open(self, place, namespace, capacity_bytes): return MyTier(...)
    def raw(self, place): return MyRaw(...)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import pytest

from kvloft.errors import TierError
from kvloft.keys import Namespace, digest_key
from kvloft.tiers.base import JobResult, Presence, Status, Tier
from kvloft.tiers.frame import HEADER_BYTES, VERSION, seal

_PATIENCE = 20.0
"""Seconds until something that should have happened counts as not happening. Nothing waits that long if all is well."""


class RawTier(ABC):
    """The medium under a tier, reached without the code under test. A frame is a header and its payload."""

    @abstractmethod
    def frames(self) -> list[Hashable]:
        """Names of all frames at rest."""

    @abstractmethod
    def read(self, name: Hashable) -> bytes:
        """A frame."""

    @abstractmethod
    def write(self, name: Hashable, frame: bytes) -> None:
        """Put other bytes in a frame's place: as many as the medium holds there, the rest as if the medium had lost it."""

    def charged(self) -> int:
        """Bytes that count against the tier's capacity."""
        return sum(len(self.read(name)) for name in self.frames())


class TierSuite:
    """Subclass it, fill in `open` and `raw`, and let pytest collect it.

    `place` is a fixture: where one test's blocks rest (a directory, an address with a prefix); override it if `tmp_path` is
    not one. Two calls of `open` with one place reach the same blocks.
    """

    block_bytes: ClassVar[int] = 16384
    capacity_bytes: ClassVar[int] = 2 << 20
    bounded: ClassVar[bool] = True
    """Whether the tier holds a bound of its own."""
    namespace: ClassVar[Namespace] = Namespace(model="suite", dtype="bfloat16", block_size=16)

    @pytest.fixture
    def place(self, tmp_path: Any) -> Any:
        return tmp_path / "tier"

    def open(self, place: Any, namespace: Namespace, capacity_bytes: int) -> Tier:
        """The tier under test."""
        raise NotImplementedError

    def raw(self, place: Any) -> RawTier:
        """The medium under it."""
        raise NotImplementedError

    def break_medium(self, tier: Tier, how: str | None) -> None:
        """Make the medium of an open tier fail on "read" or "write", hang on both ("hang"), or work again (None)."""
        pytest.skip("this tier's medium cannot be made to fail here")

    # Storing and loading.

    def test_returns_what_was_stored(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(7)
            assert use.store(keys) == [Status.OK] * 7
            use.expect(keys)

    def test_answers_in_the_order_of_the_job(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(8)
            use.store(keys[1::2])
            assert use.load(keys) == [Status.MISS, Status.OK] * 4

    def test_answers_every_job_once(self, place: Any) -> None:
        with _opened(self, place) as use:
            groups = [use.keys(3, f"group {n}") for n in range(12)]
            stores = {n: use.submit_store(keys) for n, keys in enumerate(groups)}
            assert use.tier.drain(_PATIENCE)
            loads = {n: use.submit_load(keys)[0] for n, keys in enumerate(groups)}
            assert use.tier.drain(_PATIENCE)
            answers = use.tier.poll()
            assert sorted(answer.job for answer in answers) == sorted([*stores.values(), *loads.values()])
            assert use.tier.poll() == []

    def test_takes_a_block_twice_in_one_job(self, place: Any) -> None:
        with _opened(self, place) as use:
            a, b = use.keys(2)
            assert use.store([a, b, a]) == [Status.OK] * 3
            assert use.load([b, a, b]) == [Status.OK] * 3
            assert len(self.raw(place).frames()) == 2

    def test_an_empty_job_has_an_answer(self, place: Any) -> None:
        with _opened(self, place) as use:
            assert use.store([]) == [] and use.load([]) == []

    def test_stores_a_block_once(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(3)
            use.store(keys)
            before = {name: self.raw(place).read(name) for name in self.raw(place).frames()}
            assert use.store(keys) == [Status.OK] * 3
            assert {name: self.raw(place).read(name) for name in self.raw(place).frames()} == before
            assert use.tier.stats().counters["stored"] == 3

    def test_refuses_buffers_that_do_not_fit(self, place: Any) -> None:
        with _opened(self, place) as use, pytest.raises(TierError):
            use.tier.submit_load(99, use.keys(1), [memoryview(bytearray(self.block_bytes - 1))])

    def test_lookup_knows_what_is_there(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(4)
            use.store(keys[:2])
            assert use.look(keys) == [Presence.HIT, Presence.HIT, Presence.MISS, Presence.MISS]

    def test_remove_is_seen_at_once(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(4)
            use.store(keys)
            use.tier.remove([keys[1], *use.keys(1, "never there")])
            assert use.look(keys) == [Presence.HIT, Presence.MISS, Presence.HIT, Presence.HIT]
            assert use.load(keys) == [Status.OK, Status.MISS, Status.OK, Status.OK]
            assert use.store(keys) == [Status.OK] * 4
            use.expect(keys)

    def test_touch_of_nothing_is_no_error(self, place: Any) -> None:
        with _opened(self, place) as use:
            use.tier.touch(use.keys(3))

    def test_close_is_idempotent(self, place: Any) -> None:
        with _opened(self, place) as use:
            use.store(use.keys(2))
            use.tier.close()
            use.tier.close()
            with pytest.raises(TierError):
                use.submit_store(use.keys(1))

    # Restart.

    def test_restart_finds_what_was_committed(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(9)
            use.store(keys)
        with _opened(self, place) as use:
            assert use.look(keys) == [Presence.HIT] * 9
            use.expect(keys)

    def test_restart_finds_no_phantom(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(6)
            use.store(keys)
            use.tier.remove(keys[:3])
            use.tier.drain(_PATIENCE)
        with _opened(self, place) as use:
            assert use.look(keys) == [Presence.MISS] * 3 + [Presence.HIT] * 3
            assert use.load(keys) == [Status.MISS] * 3 + [Status.OK] * 3

    def test_namespaces_share_nothing(self, place: Any) -> None:
        other = Namespace(model="suite", dtype="bfloat16", block_size=16, tenant="another")
        with _opened(self, place) as use:
            keys = use.keys(4)
            use.store(keys)
        with _opened(self, place, other) as use:
            assert use.load(keys) == [Status.MISS] * 4
            use.store(keys[:2])
        with _opened(self, place) as use:
            use.expect(keys)

    # Damage.

    @pytest.mark.parametrize("at", [0, 8, 20, 60, 80, 90, 100, HEADER_BYTES, HEADER_BYTES + 5000, -1])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_flipped_bit_is_a_miss(self, place: Any, at: int, restarted: bool) -> None:
        self._damage(place, restarted, lambda frame: _flipped(frame, at))

    @pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, -1])
    def test_a_cut_frame_is_a_miss(self, place: Any, length: int) -> None:
        self._damage(place, True, lambda frame: frame[:length])

    def test_another_version_is_a_miss(self, place: Any) -> None:
        self._damage(place, True, lambda frame: frame[:8] + (VERSION + 1).to_bytes(2, "little") + frame[10:])

    def test_anothers_block_is_a_miss(self, place: Any) -> None:
        """A sound frame of this namespace, but not of this key: as after a mix-up of names."""
        digest = digest_key(self.namespace, "another block")
        self._damage(
            place, False, lambda frame: seal(self.namespace.fingerprint, digest, _payload(frame)) + frame[HEADER_BYTES:]
        )

    def test_a_foreign_block_is_a_miss(self, place: Any) -> None:
        """A sound frame of this key, but of another model."""
        foreign = Namespace(model="another").fingerprint
        self._damage(place, True, lambda frame: seal(foreign, frame[48:80], _payload(frame)) + frame[HEADER_BYTES:])

    def test_a_torn_write_is_a_miss(self, place: Any) -> None:
        """New bytes up to the middle, older ones behind."""
        self._damage(place, True, lambda frame: frame[: len(frame) // 2] + bytes(len(frame) - len(frame) // 2))

    def _damage(self, place: Any, restarted: bool, change: Callable[[bytes], bytes]) -> None:
        """A changed frame is a miss, is counted, stays a miss, and does not harm its neighbours or a new store."""
        with _opened(self, place) as use:
            keys = use.keys(5)
            use.store(keys)
            if not restarted:
                self._change_all_but_first(place, use, keys, change)
                self._expect_lost(use, keys)
        if restarted:
            self._change_all_but_first(place, use, keys, change)
            with _opened(self, place) as use:
                self._expect_lost(use, keys)

    def _change_all_but_first(
        self, place: Any, use: "_Use", keys: Sequence[bytes], change: Callable[[bytes], bytes]
    ) -> None:
        raw = self.raw(place)
        spared = digest_key(self.namespace, keys[0])
        for name in raw.frames():
            frame = raw.read(name)
            if frame[48:80] != spared:
                raw.write(name, change(frame))

    def _expect_lost(self, use: "_Use", keys: Sequence[bytes]) -> None:
        lost = len(keys) - 1
        assert use.load(keys) == [Status.OK] + [Status.MISS] * lost
        assert use.tier.stats().counters["corrupt"] == lost
        assert use.look(keys) == [Presence.HIT] + [Presence.MISS] * lost
        assert use.store(keys) == [Status.OK] * len(keys)
        use.expect(keys)

    # Bounds.

    def test_capacity_is_never_exceeded(self, place: Any) -> None:
        if not self.bounded:
            pytest.skip("this tier has no bound of its own")
        with _opened(self, place) as use:
            per_job = 8
            held = 0
            for n in range(3 * self.capacity_bytes // self.block_bytes // per_job):
                use.store(use.keys(per_job, f"round {n}"))
                assert self.raw(place).charged() <= self.capacity_bytes
                held = max(held, use.tier.stats().blocks)
            newest = use.keys(per_job, f"round {n}")
            assert use.load(newest) == [Status.OK] * per_job
            assert held * self.block_bytes > self.capacity_bytes // 4
            assert use.tier.stats().counters["evicted"] > 0

    def test_used_blocks_stay(self, place: Any) -> None:
        if not self.bounded:
            pytest.skip("this tier has no bound of its own")
        with _opened(self, place) as use:
            loved, loaded = use.keys(4, "touched"), use.keys(4, "loaded")
            use.store([*loved, *loaded])
            for n in range(2 * self.capacity_bytes // self.block_bytes // 8):
                use.store(use.keys(8, f"round {n}"))
                use.tier.touch(loved)
                use.load(loaded)
            use.expect([*loved, *loaded])

    def test_a_job_larger_than_the_tier_keeps_what_fits(self, place: Any) -> None:
        if not self.bounded:
            pytest.skip("this tier has no bound of its own")
        with _opened(self, place) as use:
            keys = use.keys(2 * self.capacity_bytes // self.block_bytes)
            statuses = use.store(keys)
            assert set(statuses) == {Status.OK, Status.DROPPED}
            stored = [key for key, status in zip(keys, statuses, strict=True) if status is Status.OK]
            use.expect(stored)
            assert self.raw(place).charged() <= self.capacity_bytes

    # Failing media.

    def test_a_failing_write_is_an_answer(self, place: Any) -> None:
        with _opened(self, place) as use:
            kept, lost = use.keys(3, "kept"), use.keys(3, "lost")
            use.store(kept)
            self.break_medium(use.tier, "write")
            assert Status.OK not in use.store(lost)
            assert use.load(kept) == [Status.OK] * 3
            self.break_medium(use.tier, None)
            assert Status.OK not in use.load(lost)
            more = use.keys(3, "more")
            assert use.store(more) == [Status.OK] * 3
            use.expect([*kept, *more])

    def test_a_failing_read_is_an_answer(self, place: Any) -> None:
        with _opened(self, place) as use:
            keys = use.keys(3)
            use.store(keys)
            self.break_medium(use.tier, "read")
            assert Status.OK not in use.load(keys)
            self.break_medium(use.tier, None)
            use.store(keys)
            assert Status.OK not in {status for status in use.load(keys) if status not in (Status.OK, Status.MISS)}
            fresh = use.keys(3, "fresh")
            assert use.store(fresh) == [Status.OK] * 3
            use.expect(fresh)

    def test_no_call_waits_for_the_medium(self, place: Any) -> None:
        """With a medium that hangs, every call but `drain` and `close` comes back: if not, this test does not end."""
        with _opened(self, place) as use:
            keys = use.keys(4)
            use.store(keys)
            use.look(keys)
            self.break_medium(use.tier, "hang")
            try:
                load, buffers = use.submit_load(keys)
                store = use.submit_store(use.keys(4, "new"))
                for _ in range(3):
                    assert use.tier.lookup(keys) == [Presence.HIT] * 4
                    use.tier.touch(keys)
                    use.tier.stats()
                    assert use.tier.poll() == []
                use.tier.remove(keys[:1])
                assert not use.tier.drain(0.01)
            finally:
                self.break_medium(use.tier, None)
            assert use.tier.drain(_PATIENCE)
            answers = {answer.job: answer for answer in use.tier.poll()}
            assert set(answers) == {load, store}
            for key, buffer, status in zip(keys, buffers, answers[load].statuses, strict=True):
                assert status is not Status.OK or bytes(buffer) == use.content(key)

    # Several at one place.

    def test_what_one_stores_another_finds(self, place: Any) -> None:
        with _opened(self, place) as one, _opened(self, place) as other:
            keys = one.keys(5)
            one.store(keys)
            other.wait_for(keys)
            other.expect(keys)

    def test_a_block_stored_by_two_is_stored_once(self, place: Any) -> None:
        with _opened(self, place) as one, _opened(self, place) as other:
            one.look(one.keys(1))
            other.look(one.keys(1))
            for n in range(10):
                keys = one.keys(6, f"round {n}")
                jobs = one.submit_store(keys), other.submit_store(keys)
                assert one.tier.drain(_PATIENCE) and other.tier.drain(_PATIENCE)
                first, second = one.answer(jobs[0]), other.answer(jobs[1])
                for pair in zip(first.statuses, second.statuses, strict=True):
                    assert set(pair) <= {Status.OK, Status.DROPPED} and Status.OK in pair
            raw = self.raw(place)
            stored = [raw.read(name)[48:80] for name in raw.frames()]
            assert sorted(stored) == sorted({*stored}) and len(stored) == 60

    def test_capacity_holds_for_all_together(self, place: Any) -> None:
        if not self.bounded:
            pytest.skip("this tier has no bound of its own")
        with _opened(self, place) as one, _opened(self, place) as other:
            for n in range(2 * self.capacity_bytes // self.block_bytes // 8):
                for use, name in ((one, "one"), (other, "other")):
                    assert set(use.store(use.keys(8, f"{name} {n}"))) <= {Status.OK, Status.DROPPED}
                assert self.raw(place).charged() <= self.capacity_bytes


class _Use:
    """An open tier, and blocks whose content follows from their key."""

    def __init__(self, suite: TierSuite, place: Any, namespace: Namespace) -> None:
        self.tier = suite.open(place, namespace, suite.capacity_bytes)
        self.block_bytes = suite.block_bytes
        self._job = 0

    def keys(self, n: int, name: str = "block") -> list[bytes]:
        return [f"{name} {at}".encode() for at in range(n)]

    def content(self, key: bytes) -> bytes:
        return (key * (self.block_bytes // len(key) + 1))[: self.block_bytes]

    def submit_store(self, keys: Sequence[bytes]) -> int:
        self._job += 1
        self.tier.submit_store(self._job, keys, [memoryview(bytearray(self.content(key))) for key in keys])
        return self._job

    def submit_load(self, keys: Sequence[bytes]) -> tuple[int, list[memoryview]]:
        self._job += 1
        buffers = [memoryview(bytearray(self.block_bytes)) for _ in keys]
        self.tier.submit_load(self._job, keys, buffers)
        return self._job, buffers

    def answer(self, job: int) -> JobResult:
        assert self.tier.drain(_PATIENCE)
        (answer,) = self.tier.poll()
        assert answer.job == job and answer.seconds >= 0
        assert (answer.error is not None) == (Status.FAILED in answer.statuses)
        return answer

    def store(self, keys: Sequence[bytes]) -> list[Status]:
        return list(self.answer(self.submit_store(keys)).statuses)

    def load(self, keys: Sequence[bytes]) -> list[Status]:
        """Load, and check that whatever is OK is right."""
        job, buffers = self.submit_load(keys)
        statuses = list(self.answer(job).statuses)
        for key, buffer, status in zip(keys, buffers, statuses, strict=True):
            assert status is not Status.OK or bytes(buffer) == self.content(key), key
        return statuses

    def expect(self, keys: Sequence[bytes]) -> None:
        assert self.load(keys) == [Status.OK] * len(keys)

    def look(self, keys: Sequence[bytes]) -> list[Presence]:
        """What a lookup says once it knows."""
        end = time.monotonic() + _PATIENCE
        while Presence.UNKNOWN in (found := self.tier.lookup(keys)):
            assert time.monotonic() < end, "UNKNOWN has no end"
            time.sleep(0.001)
        return found

    def wait_for(self, keys: Sequence[bytes]) -> None:
        """Until blocks that another has stored are seen here."""
        end = time.monotonic() + _PATIENCE
        while set(self.tier.lookup(keys)) != {Presence.HIT}:
            assert time.monotonic() < end, "what another stored is never seen"
            time.sleep(0.005)


class _opened:
    """A tier in use, closed at the end."""

    def __init__(self, suite: TierSuite, place: Any, namespace: Namespace | None = None) -> None:
        self._use = _Use(suite, place, namespace or suite.namespace)

    def __enter__(self) -> _Use:
        return self._use

    def __exit__(self, *_: object) -> None:
        self._use.tier.close()


def _payload(frame: bytes) -> memoryview:
    return memoryview(frame)[HEADER_BYTES:]


def _flipped(frame: bytes, at: int) -> bytes:
    changed = bytearray(frame)
    changed[at] ^= 0x10
    return bytes(changed)
