"""What a disk tier does by itself, on a thread of its own: find blocks at the start, and keep house ever after.

At the start all segments of the namespace are opened, those that nobody owns are taken, and their blocks enter the catalog,
least recently used first. Then, every tick: learn what other processes did, take segments whose owner died, give some to a
process that has less than its share, write down what was used, remove what is too old, and give space back when the
directory is above its bound or the file system below its floor.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from kvloft.tiers.disk.catalog import CHUNK, Catalog, Gone, entries
from kvloft.tiers.disk.locks import LockFile
from kvloft.tiers.disk.records import CONDEMNED, Array, is_condemned
from kvloft.tiers.disk.segment import INDEX, SLOT_BITS, Segment, Unfit
from kvloft.tiers.disk.space import Space
from kvloft.tiers.disk.transfer import Transfer

_EXPIRED_AT_ONCE = 4096
_HEAT_ROUNDS = 10
"""Rounds between exchanges of heat: a killed process loses so much of recency."""
_GROWTH_PAUSE = 1.0
"""Seconds after a refusal before growing is tried again: counting the directory is not free."""


class Upkeep:
    """Keeps the catalog and the directory in step. `grow` and `refresh` are called by workers, the rest by its thread.

    Args:
        lock: guards the catalog and the counters; never held during I/O.
        tick: seconds between rounds.
    """

    def __init__(
        self, catalog: Catalog, space: Space, lock: threading.Lock, counters: Counter[str], *, tick: float, read_only: bool
    ) -> None:
        self._catalog, self._space, self._lock, self._counters = catalog, space, lock, counters
        self._tick, self._read_only = tick, read_only
        self._files = space.files
        self.transfer: Transfer | None = None
        self._refreshing = threading.Lock()
        """Who learns what others did holds it, so that nobody takes older news for newer."""
        self._made: set[str] = set()
        """Names of segments that this process made."""
        self._bad: set[str] = set()
        """Segments that are no good and could not be removed, by name."""
        self._listed: tuple[int, int] | None = None
        self._refused_at = -_GROWTH_PAUSE
        self._hungry = False
        """Whether a store found no room, and others own what there is."""
        self._closing: list[Segment] = []
        """Segments out of use, to be closed when the last transfer in them has ended."""
        self._rounds = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ready: Callable[[], None], name: str) -> None:
        """Find what is there, call `ready`, then keep house until `stop`."""
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self, ready: Callable[[], None]) -> None:
        try:
            self._guard(self._prepare, self.refresh, self._shrink)
        finally:
            with self._lock:
                self._catalog.complete = True
                self._catalog.renounced.clear()
            ready()
        while not self._stop.wait(self._tick):
            self._guard(
                self._check_lock_file, self.refresh, self._take_orphans, self._share, self._drop_lost,
                self._exchange_heat, self._expire, self._shrink, self._close_idle,
            )  # fmt: skip
        self._guard(self._learn_heat, self._write_heat)

    def _guard(self, *steps: Callable[[], None]) -> None:
        """Do steps; one that fails is counted, told, and tried again in the next round, and stops no other."""
        for step in steps:
            try:
                step()
            except Exception as error:
                with self._lock:
                    self._counters["upkeep_failed"] += 1
                self._space.troubles.tell(f"upkeep, {step.__name__.strip('_').replace('_', ' ')}", error)

    # Finding segments.

    def _prepare(self) -> None:
        if not self._read_only:
            with self._space.growing() as held:
                if held:
                    self._space.sweep()

    def refresh(self) -> None:
        """Learn what other processes have committed so far."""
        with self._refreshing:
            self._discover()
            self._follow()

    def _discover(self) -> None:
        """Open segments that are new in the directory; take those that nobody owns."""
        try:
            status = self._files.stat(self._space.home)
        except FileNotFoundError:
            return
        listed = (status.st_ino, status.st_mtime_ns)
        if listed == self._listed:
            return
        known = self._made | {segment.name for segment in [*self._catalog.segments.values(), *self._closing]}
        names = {entry.name for entry in self._files.list(self._space.home)}
        found: list[Segment] = []
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            if suffix == INDEX and stem not in known and stem not in self._bad and not self._space.is_stuck(stem):
                segment = self._open(stem)
                if segment is not None:
                    found.append(segment)
        self._enter(found, {segment for segment in found if self._may_take() and segment.take()})
        self._listed = listed

    def _open(self, name: str) -> Segment | None:
        space = self._space
        try:
            segment = Segment.open(
                self._files,
                space.home,
                name,
                space.fingerprint,
                space.block_bytes,
                direct=space.direct,
                writable=not self._read_only,
            )
        except FileNotFoundError:
            return None
        except Unfit as error:
            space.troubles.tell("a segment is of no use and goes", f"{name}: {error}")
            self._put_away(name)
            return None
        except OSError as error:
            self._bad.add(name)
            self._count("unreadable")
            space.troubles.tell("a segment cannot be read", f"{name}: {error}")
            return None
        return segment

    def _put_away(self, name: str) -> None:
        """A segment that is damaged, foreign or of another version: nothing in it can be served, so its space is freed."""
        self._count("unfit")
        self._bad.add(name)
        if not self._read_only:
            with self._space.growing() as held:
                if held:
                    self._space.remove_unfit(name)

    def _may_take(self) -> bool:
        """Whether this process should take a segment that nobody owns: not while another needs it more."""
        lock_file = self._space.lock_file
        return not self._read_only and lock_file is not None and (self._hungry or not lock_file.wanted())

    def _enter(self, found: list[Segment], held: set[Segment]) -> None:
        """Know all blocks of segments, and rank those of the segments whose lock is `held`: least recently used first; of
        those used at the same time, the ends of chains."""
        ages: list[Array] = []
        blocks: list[tuple[bytes, int, int]] = []
        for segment in found:
            changes, records, heat = segment.changes(), segment.read_records(), segment.read_heat()
            slots, free = entries(records, self._catalog.block_bytes)
            unwanted = is_condemned(heat, records["check"])[slots] if segment in held else np.zeros(len(slots), "?")
            heat[heat["hits"] == CONDEMNED] = (0, 0)
            wanted, stored = slots[~unwanted], records["stored"]
            digests = records["digest"][wanted].tolist()
            with self._lock:
                if segment.number < 0:
                    self._catalog.add(segment)
                    segment.checks = records["check"].copy()
                else:
                    self._catalog.follow(segment, records)
                self._catalog.forget(segment, slots[unwanted].tolist())
                segment.seen = changes
                segment.set_heat(heat)
            here = list(zip(wanted.tolist(), digests, stored[wanted].tolist(), strict=True))
            for start in range(0, len(here), CHUNK):
                with self._lock:
                    self._catalog.place(segment, here[start : start + CHUNK])
            if segment in held:
                with self._lock:
                    surplus = self._catalog.own(segment, slots.tolist(), free)
                self._finish_removal(surplus)
                ages.append(np.maximum(heat["used"], stored)[wanted])
                places = (wanted.astype("<i8") | segment.number << SLOT_BITS).tolist()
                blocks += zip(digests, places, heat["hits"][wanted].tolist(), strict=True)
        if blocks:
            at = np.fromiter((place for _, place, _ in blocks), "<i8", len(blocks))
            order = np.lexsort((-at, np.concatenate(ages))).tolist()
            for start in range(0, len(order), CHUNK):
                with self._lock:
                    self._catalog.rank([blocks[at] for at in order[start : start + CHUNK]])

    # Following others.

    def _follow(self) -> None:
        for segment in list(self._catalog.segments.values()):
            if not segment.owned:
                changes = segment.changes()
                if changes != segment.seen:
                    records = segment.read_records()
                    with self._lock:
                        if not segment.owned and not segment.gone:
                            segment.seen = changes
                            self._catalog.follow(segment, records)

    def _take_orphans(self) -> None:
        """Take segments whose owner has gone."""
        for segment in list(self._catalog.segments.values()):
            if not segment.owned and self._may_take() and segment.take():
                with self._refreshing:
                    self._enter([segment], {segment})

    def _share(self) -> None:
        """Give a segment to a process that has less than its share, if this one has more."""
        lock_file = self._space.lock_file
        if self._hungry and not self._is_below_share():
            self._be_hungry(False)
        if lock_file is None or self._hungry or not lock_file.wanted():
            return
        owned = [segment for segment in self._catalog.segments.values() if segment.owned]
        if len(owned) < 2 or len(owned) * lock_file.members() <= self._space.segments():
            return
        coldest = min(owned, key=_last_use)
        with self._lock:
            if self._catalog.is_being_written(coldest):
                return
            self._catalog.disown(coldest)
            coldest.checks = np.zeros(coldest.slots, "<u8")
            coldest.seen = -1
            self._counters["handed_over"] += 1
        coldest.leave()

    def _is_below_share(self) -> bool:
        lock_file = self._space.lock_file
        owned = sum(segment.owned for segment in self._catalog.segments.values())
        return lock_file is not None and (not owned or (owned + 1) * lock_file.members() <= self._space.segments())

    def _be_hungry(self, hungry: bool) -> None:
        self._hungry = hungry
        if self._space.lock_file is not None:
            self._space.lock_file.want(hungry)

    # Growing and shrinking.

    def grow(self, needed: int) -> bool:
        """Make segments until `needed` slots are free; False if the directory's bound or the file system allow no more."""
        if time.monotonic() - self._refused_at < _GROWTH_PAUSE:
            return False
        refused = False
        with self._space.growing() as held:
            while len(self._catalog.free) < needed and not refused:
                segment = self._make() if held else None
                if segment is None:
                    refused = True
                    self._refused_at = time.monotonic()
                    break
                with self._lock:
                    self._catalog.add(segment)
                    self._catalog.add_free(segment, range(segment.slots))
        self._be_hungry(refused and self._is_below_share())
        return not refused

    def _make(self) -> Segment | None:
        name = os.urandom(8).hex()
        self._made.add(name)
        try:
            return self._space.make(name)
        except OSError as error:
            self._count("no_space")
            self._space.troubles.tell("no more space, though within bounds", error)
            return None

    def _shrink(self) -> None:
        """Delete own segments, the coldest first, while there is too much; give up after one that cannot be deleted."""
        if self._read_only or self._space.excess() <= 0:
            return
        with self._space.growing() as held:
            while held and self._space.excess() > 0:
                owned = [segment for segment in self._catalog.segments.values() if segment.owned]
                if not self._space.reclaim_foreign() and not any(map(self._destroy, sorted(owned, key=_last_use))):
                    return

    def _destroy(self, segment: Segment) -> bool:
        with self._lock:
            if self._catalog.is_being_written(segment):
                return False
            self._catalog.discard(segment)
            self._counters["shrunk"] += 1
        self._refused_at = time.monotonic()
        done = self._space.destroy(segment)
        self._closing.append(segment)
        return done

    def _drop_lost(self) -> None:
        """Forget segments whose files somebody deleted or cut."""
        for segment in list(self._catalog.segments.values()):
            if not segment.is_there():
                with self._lock:
                    if self._catalog.is_being_written(segment):
                        continue
                    was_owned = segment.owned
                    self._catalog.discard(segment)
                    self._counters["lost"] += 1
                if was_owned:
                    self._space.destroy(segment)
                self._closing.append(segment)

    def _close_idle(self) -> None:
        still = [segment for segment in self._closing if segment.users > 0]
        for segment in self._closing:
            if segment.users <= 0:
                segment.close()
        self._closing = still

    def close_all(self) -> None:
        """Let go of all files. Nothing runs any more."""
        for segment in [*self._catalog.segments.values(), *self._closing]:
            segment.close()
        self._catalog.segments.clear()
        self._closing.clear()

    def _check_lock_file(self) -> None:
        """Somebody deleted the lock file, or all of the directory: lock the one that others see."""
        old = self._space.lock_file
        if old is not None and not old.is_current():
            self._files.make_directory(self._space.root)
            self._space.lock_file = LockFile(self._files, self._space.root)
            old.close()

    # Use and age.

    def _exchange_heat(self) -> None:
        """Now and then: learn from others what they used or condemned of the own segments, and write down what was used
        here. In this order, so that what others wrote is not lost."""
        self._rounds += 1
        if self._rounds % _HEAT_ROUNDS == 0:
            if self._space.lock_file is not None and self._space.lock_file.members() > 1:
                self._learn_heat()
            self._write_heat()

    def _learn_heat(self) -> None:
        for segment in list(self._catalog.segments.values()):
            if not segment.owned:
                continue
            heat = segment.read_heat()
            marked = np.flatnonzero(heat["hits"] == CONDEMNED)
            warmer = np.flatnonzero(
                ((heat["used"] > segment.used) | (heat["hits"] > segment.hits)) & (heat["hits"] != CONDEMNED)
            )
            if not len(marked) and not len(warmer):
                continue
            condemned = marked[is_condemned(heat, segment.read_records()["check"])[marked]].tolist()
            with self._lock:
                gone = self._catalog.drop_all(digest for slot in condemned if (digest := segment.digests[slot]))
                segment.heat[warmer] = heat[warmer]
                segment.touched.update(marked.tolist())
                self._catalog.warm([digest for slot in warmer.tolist() if (digest := segment.digests[slot])])
            self._finish_removal(gone)

    def _write_heat(self) -> None:
        if self._read_only:
            return
        for segment in list(self._catalog.segments.values()):
            with self._lock:
                slots, segment.touched = sorted(segment.touched), set()
                heat = segment.heat.copy() if slots else segment.heat
            for first, last in _spans(slots):
                segment.write_heat(first, heat[first : last + 1])

    def _expire(self) -> None:
        while True:
            with self._lock:
                old = self._catalog.expired(time.time(), _EXPIRED_AT_ONCE)
                gone = self._catalog.drop_all(old)
                self._counters["expired"] += len(gone)
            if not gone:
                return
            self._finish_removal(gone)

    # Steps.

    def _finish_removal(self, gone: Sequence[Gone]) -> None:
        if gone and self.transfer is not None:
            self.transfer.finish_removal(gone)

    def _count(self, counter: str) -> None:
        with self._lock:
            self._counters[counter] += 1


def _last_use(segment: Segment) -> float:
    """Mean time of last use of a segment's blocks; 0 if it has none."""
    used = np.maximum(segment.heat["used"], segment.stored)[segment.stored > 0]
    return float(used.mean()) if len(used) else 0.0


def _spans(slots: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers, first and last of each."""
    spans: list[tuple[int, int]] = []
    for slot in slots:
        if spans and slot == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], slot)
        else:
            spans.append((slot, slot))
    return spans
