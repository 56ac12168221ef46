"""What lies where, in memory: the blocks of all segments, the free slots and the order of eviction of the owned ones."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from kvloft.policies import Offer, Policy
from kvloft.policies.base import evict_checked
from kvloft.request import Key, Request
from kvloft.tiers.disk.records import BROKEN, CONDEMNED, Array, is_sound
from kvloft.tiers.disk.segment import SLOT_BITS, Segment

_SLOT = (1 << SLOT_BITS) - 1
CHUNK = 1024
"""Blocks entered in one go: bounds how long the lock is held."""


class Room(NamedTuple):
    """Slots reserved for blocks.

    Args:
        slots: a place for each block that has one, ascending: neighbours in the chain are neighbours on the medium.
        evicted: places whose blocks left for it; their records are to be cleared before anything is written there.
    """

    slots: list[tuple[bytes, int]]
    evicted: list[int]


class Gone(NamedTuple):
    """A block that was dropped from the catalog and is still to leave the medium.

    Args:
        owned: its segment was owned at that time, and stays so until the place was handed to `vacate` or `retire`.
    """

    digest: bytes
    place: int
    owned: bool


class Catalog:
    """Blocks by digest. A place is `segment.number << 32 | slot`. Not thread-safe, except `locate`; does no I/O.

    A policy knows the blocks of owned segments only: one process evicts from what it owns.
    """

    def __init__(self, policy: Policy, block_bytes: int, ttl: float | None) -> None:
        self.policy = policy
        self.block_bytes = block_bytes
        self.ttl = ttl
        self.segments: dict[int, Segment] = {}
        self.where: dict[bytes, int] = {}
        """Readable blocks."""
        self.journal: deque[tuple[bytes, bool]] | None = None
        """If anybody wants to know: blocks that came to be in `where` (True) or left it, in order."""
        self.free: list[int] = []
        """Places to write to, the next one last."""
        self.ours = 0
        """Blocks the policy knows: readable and owned, or being written."""
        self.complete = False
        """Whether all that lay on the medium at the start is known."""
        self.renounced: set[bytes] = set()
        """Blocks removed before that, or whose removal the owner of their segment has still to be told."""
        self._writing: dict[bytes, int] = {}
        self._reading: Counter[int] = Counter()
        self._clearing: set[int] = set()
        """Owned places whose block was dropped and whose record is still to be cleared."""
        self._leaving: set[int] = set()
        """Places that become free once nobody reads them."""
        self._numbers = count()
        self._requests = count()

    def request(self) -> Request:
        """A new request. Every job is one of its own: a tier does not know whose blocks it holds."""
        return Request(next(self._requests))

    # Looking.

    def locate(self, digest: bytes, now: float) -> int | None:
        """Where a block is, if it is there and not too old. Safe from any thread without the lock."""
        place = self.where.get(digest)
        if place is None:
            return None
        segment = self.segments.get(place >> SLOT_BITS)
        if segment is None or (self.ttl is not None and now - segment.stored[place & _SLOT] > self.ttl):
            return None
        return place

    def segment(self, place: int) -> Segment:
        return self.segments[place >> SLOT_BITS]

    # Writing.

    def reserve(self, digests: Sequence[bytes], offered: Sequence[bytes], request: Request, *, evict: bool) -> Room:
        """Places for as many of the blocks as can have one, first ones first; with `evict`, others leave for it.

        Args:
            digests: distinct, neither there nor being written.
            offered: all blocks of the job, distinct; those of them that are here stay.
        """
        offer = Offer(digests, request, offered)
        need = len(digests) - len(self.free)
        evicted: list[int] = []
        if need > 0:
            able = 0
            if evict:
                accepted = self.policy.accept(offer, need)
                offer = offer._replace(keys=digests[:accepted], declined=digests[accepted:])
                keep = self._kept(offered)
                able = min(accepted - len(self.free), max(0, self.ours - len(keep)))
            offer = offer._replace(keys=offer.keys[: len(self.free) + able])
            if able > 0:
                victims = evict_checked(self.policy, able, keep, offer)
                self.ours -= able
                evicted = [self._take_out(victim) for victim in victims]  # type: ignore[arg-type]
        digests = digests[: len(offer.keys)]
        if not digests:
            return Room([], evicted)
        self.policy.admit(offer)
        self.ours += len(digests)
        fresh = len(digests) - len(evicted)
        places = sorted([*self.free[len(self.free) - fresh :], *evicted])
        del self.free[len(self.free) - fresh :]
        slots = list(zip(digests, places, strict=True))
        self._writing.update(slots)
        return Room(slots, evicted)

    def commit(self, digests: Sequence[bytes], stored: float, request: Request) -> None:
        """The frames and records of these blocks are on the medium."""
        for digest in digests:
            place = self._writing.pop(digest)
            self._put_in(digest, place, stored)
            segment, slot = self.segment(place), place & _SLOT
            segment.used[slot], segment.hits[slot] = int(stored), 0
            segment.ranked[slot] = True
            segment.touched.add(slot)
        self.policy.commit(digests, request)

    def abandon(self, digest: bytes) -> None:
        """The medium failed to take a block; its place is not used again."""
        del self._writing[digest]
        self.policy.forget([digest])
        self.ours -= 1

    def withdraw(self, digests: Iterable[bytes]) -> list[Gone]:
        """Nobody writes these blocks after all, as far as anybody was to. The medium is still to be told of their places."""
        gone = [Gone(digest, place, True) for digest in digests if (place := self._writing.pop(digest, None)) is not None]
        self._clearing.update(place for _, place, _ in gone)
        self.ours -= len(gone)
        self.policy.forget([digest for digest, _, _ in gone])
        return gone

    # Reading.

    def pin(self, place: int) -> Segment:
        """Keep a block and its segment's files until `unpin`."""
        segment = self.segment(place)
        self._reading[place] += 1
        segment.users += 1
        return segment

    def unpin(self, place: int, segment: Segment) -> None:
        segment.users -= 1
        self._reading[place] -= 1
        if not self._reading[place]:
            del self._reading[place]
            if place in self._leaving:
                self._leaving.discard(place)
                self._free(place)

    def use(self, digests: Iterable[bytes], now: float, request: Request, *, stored: bool = False) -> None:
        """Blocks were read, or just stored, in chain order: they may stay longer."""
        here = [(digest, place) for digest in dict.fromkeys(digests) if (place := self.where.get(digest)) is not None]
        if not stored:
            second = int(now)
            for _, place in here:
                segment, slot = self.segment(place), place & _SLOT
                segment.used[slot] = second
                segment.hits[slot] = min(segment.hits[slot] + 1, CONDEMNED - 1)
                segment.touched.add(slot)
        ours = [digest for digest, place in here if self.segment(place).ranked[place & _SLOT]]
        if ours:
            self.policy.finish(ours, set(ours) if stored else set(), request)

    def warm(self, digests: Sequence[bytes]) -> None:
        """Owned blocks were used by other processes."""
        ranked = [digest for digest in digests if self._is_ranked(digest)]
        if ranked:
            self.policy.finish(ranked, set(), self.request())

    # Leaving.

    def drop(self, digest: bytes, place: int | None = None) -> Gone | None:
        """Forget a block, here only; if `place` is given, only if it is there. The medium is still to be told."""
        known = self.where.get(digest)
        if known is None or place not in (None, known):
            return None
        if self._is_ranked(digest):
            self.policy.forget([digest])
            self.ours -= 1
        self._take_out(digest)
        owned = self.segment(known).owned
        if owned:
            self._clearing.add(known)
        return Gone(digest, known, owned)

    def drop_all(self, digests: Iterable[bytes]) -> list[Gone]:
        return [gone for digest in digests if (gone := self.drop(digest)) is not None]

    def doubt(self, digest: bytes, place: int) -> None:
        """A block was not found where it should be, in the segment of another owner: its record is to be read anew."""
        if self.where.get(digest) == place:
            self._take_out(digest)
            segment = self.segment(place)
            segment.checks[place & _SLOT] = 0
            segment.seen = -1

    def vacate(self, place: int) -> None:
        """The record of an owned place is cleared: it can be written again, once nobody reads it."""
        self._clearing.discard(place)
        if place in self._reading:
            self._leaving.add(place)
        else:
            self._free(place)

    def retire(self, place: int) -> None:
        """The record of an owned place says that the medium is broken there."""
        self._clearing.discard(place)

    def expired(self, now: float, limit: int) -> list[bytes]:
        """Owned blocks that are too old, at most `limit`."""
        found: list[bytes] = []
        if self.ttl is None:
            return found
        for segment in self.segments.values():
            if segment.owned and len(found) < limit:
                slots = np.flatnonzero((segment.stored > 0) & (segment.stored < now - self.ttl))[: limit - len(found)]
                found += [digest for slot in slots.tolist() if (digest := segment.digests[slot]) is not None]
        return found

    # Segments come and go.

    def add(self, segment: Segment) -> None:
        """Know a segment; its blocks come by `place` or `follow`."""
        segment.number = next(self._numbers)
        self.segments[segment.number] = segment

    def place(self, segment: Segment, blocks: Sequence[tuple[int, bytes, float]]) -> None:
        """Know blocks found in a segment that is not owned (yet): slot, digest, time of storing; at most `CHUNK`."""
        for slot, digest, stored in blocks:
            if segment.digests[slot] is None and self._is_news(digest):
                self._put_in(digest, segment.number << SLOT_BITS | slot, stored)

    def forget(self, segment: Segment, slots: Sequence[int]) -> None:
        """Know no more what lies in some slots of a segment that is not owned (yet)."""
        for slot in slots:
            digest = segment.digests[slot]
            if digest is not None:
                self._take_out(digest)

    def own(self, segment: Segment, taken: Sequence[int], free: Sequence[int]) -> list[Gone]:
        """A segment becomes this process's own.

        Args:
            taken: slots that hold a block, according to their records.
            free: slots that hold nothing, ascending.

        Returns:
            Those among `taken` with blocks that are known elsewhere or unwanted.
        """
        segment.owned = True
        self.add_free(segment, free)
        surplus = [segment.number << SLOT_BITS | slot for slot in taken if segment.digests[slot] is None]
        self._clearing.update(surplus)
        return [Gone(b"", place, True) for place in surplus]

    def add_free(self, segment: Segment, slots: Sequence[int]) -> None:
        """Slots of an owned segment that hold nothing, ascending."""
        self.free[:0] = [segment.number << SLOT_BITS | slot for slot in reversed(slots)]

    def rank(self, blocks: Sequence[tuple[bytes, int, int]]) -> None:
        """Tell the policy of blocks in segments that have just become owned: digest, place, uses so far; least recently used
        first, at most `CHUNK`."""
        new = [(digest, hits) for digest, place, hits in blocks if self.where.get(digest) == place]
        if new:
            digests, request = [digest for digest, _ in new], self.request()
            self.policy.admit(Offer(digests, request, digests))
            self.policy.commit(digests, request)
            self.ours += len(digests)
            for digest in digests:
                place = self.where[digest]
                self.segment(place).ranked[place & _SLOT] = True
            used = [digest for digest, hits in reversed(new) if hits]
            if used:
                self.policy.finish(used, set(), request)

    def disown(self, segment: Segment) -> None:
        """An owned segment passes to another process; its blocks stay readable. Nothing of it is being written, and its
        lock is still to be let go."""
        mine = [digest for slot, digest in enumerate(segment.digests) if digest is not None and segment.ranked[slot]]
        self.policy.forget(mine)
        self.ours -= len(mine)
        segment.ranked[:] = False
        self.free = [place for place in self.free if place >> SLOT_BITS != segment.number]
        self._leaving = {place for place in self._leaving if place >> SLOT_BITS != segment.number}
        segment.owned = False

    def discard(self, segment: Segment) -> None:
        """A segment is gone, with all its blocks. Nothing of it is being written."""
        if segment.owned:
            self.disown(segment)
        for digest in segment.digests:
            if digest is not None:
                del self.where[digest]
                self._note(digest, False)
        segment.digests = [None] * segment.slots
        segment.gone = True
        del self.segments[segment.number]

    def is_being_written(self, segment: Segment) -> bool:
        """Whether slots or records of an owned segment are about to change."""
        return any(place >> SLOT_BITS == segment.number for place in (*self._writing.values(), *self._clearing))

    def follow(self, segment: Segment, records: Array) -> None:
        """Take over what another owner changed in its segment."""
        changed = np.flatnonzero(records["check"] != segment.checks)
        sound = is_sound(records, self.block_bytes)
        segment.checks = records["check"].copy()
        for slot in changed.tolist():
            old, place = segment.digests[slot], segment.number << SLOT_BITS | slot
            if old is not None and self.where.get(old) == place:
                self._take_out(old)
            if sound[slot]:
                digest = bytes(records["digest"][slot].tobytes())
                if self._is_news(digest):
                    self._put_in(digest, place, float(records["stored"][slot]))

    # Steps.

    def _is_news(self, digest: bytes) -> bool:
        return digest not in self.where and digest not in self._writing and digest not in self.renounced

    def _kept(self, offered: Sequence[bytes]) -> set[Key]:
        """Blocks the policy knows that must not leave for a store: being written, being read, offered themselves."""
        keep: set[Key] = {*self._writing, *filter(self._is_ranked, offered)}
        keep.update(digest for place in self._reading if (digest := self._ranked_at(place)) is not None)
        return self.policy.protect(keep)

    def _is_ranked(self, digest: bytes) -> bool:
        """Whether the policy knows the block, other than as one that is being written."""
        place = self.where.get(digest)
        return place is not None and bool(self.segment(place).ranked[place & _SLOT])

    def _ranked_at(self, place: int) -> bytes | None:
        segment = self.segments.get(place >> SLOT_BITS)
        return segment.digests[place & _SLOT] if segment is not None and segment.ranked[place & _SLOT] else None

    def _put_in(self, digest: bytes, place: int, stored: float) -> None:
        segment, slot = self.segment(place), place & _SLOT
        segment.stored[slot] = stored
        segment.digests[slot] = digest
        self.where[digest] = place
        self._note(digest, True)

    def _note(self, digest: bytes, here: bool) -> None:
        if self.journal is not None:
            self.journal.append((digest, here))

    def _take_out(self, digest: bytes) -> int:
        place = self.where.pop(digest)
        self._note(digest, False)
        segment, slot = self.segment(place), place & _SLOT
        segment.digests[slot] = None
        segment.stored[slot] = 0
        segment.ranked[slot] = False
        return place

    def _free(self, place: int) -> None:
        segment = self.segments.get(place >> SLOT_BITS)
        if segment is not None and segment.owned:
            self.free.append(place)


def entries(records: Array, block_bytes: int) -> tuple[Array, list[int]]:
    """Slots of a segment that hold a block, and those that are free; broken ones are neither."""
    sound = is_sound(records, block_bytes)
    return np.flatnonzero(sound), np.flatnonzero(~sound & (records["state"] != BROKEN)).tolist()
