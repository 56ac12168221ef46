"""Who lives in host memory."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from itertools import compress, filterfalse
from typing import NamedTuple

from kvloft.errors import BlockNotReady, ConfigError
from kvloft.policies import Offer, Policy, make_policy
from kvloft.policies.admission import Admission
from kvloft.policies.base import evict_checked
from kvloft.policies.hints import Hinted
from kvloft.pool.life import Life
from kvloft.pool.slots import SlotAllocator
from kvloft.request import Key, Request
from kvloft.telemetry import Counters, Event, EventKind, Stats


class Lookup(Enum):
    """What the pool has of a block."""

    MISS = "miss"
    PENDING = "pending"
    """Its bytes are on the way."""
    HIT = "hit"

    __hash__ = object.__hash__
    """An Enum's own hash runs Python code, and answers are translated for every block looked up."""


class StorePlan(NamedTuple):
    """An accepted store.

    Args:
        keys: the blocks to write: what was not resident, in offer order.
        slots: where to write them, one slot a key.
        evicted: blocks that left for it, in the order of their going. Their slots may be among `slots`.
        generation: the pool's at that time; give it to `complete_store` where completions may outlive a reset.
    """

    keys: list[Key]
    slots: list[int]
    evicted: list[Key]
    generation: int


class LoadPlan(NamedTuple):
    """Blocks pinned for reading: distinct, in the order asked for, with their slots."""

    keys: list[Key]
    slots: list[int]
    generation: int


class BlockPool:
    """Keeps track of the blocks in a host arena of `capacity` slots: which are there, readable, in use, and which leave.

    It moves no bytes. A store is `prepare_store`, the copy, `complete_store`; a load is `prepare_load`, the copy,
    `complete_load`; `finish` ends a request. A store is all or nothing and is refused only if the blocks that may leave
    are too few: those neither written, nor read, nor offered in the same call, nor part of the same request's chain. A
    policy or an admission rule may find the end of an offer not worth its room; then the head alone is stored, and the rest
    is counted as declined. LRU, ARC and the other classics never do.
    Completions may come late, twice, in any order and after `reset`. One thread at a time.

    Args:
        capacity: blocks, at least 1.
        policy: a policy's name, class or instance (see `kvloft.policies.make_policy`).
        admission: a rule that may cut stores to their heads; without one, only the policy may.
        quotas: by tenant, the share of the capacity from which it pushes out none but its own blocks.
        clock: seconds since 1970, for hints that speak of time.

    Raises:
        ConfigError: the capacity is no positive integer, or the policy is unknown.
    """

    def __init__(
        self,
        capacity: int,
        policy: str | type[Policy] | Policy = "default",
        admission: Admission | None = None,
        *,
        quotas: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise ConfigError(f"capacity: {capacity!r} is not a number of blocks; give an integer of at least 1")
        self.capacity = capacity
        self.policy = make_policy(policy, capacity)
        self.admission = admission
        self._hinted = Hinted(self.policy, clock, quotas)
        self.generation = 0
        self.counters = Counters()
        self._free = SlotAllocator(capacity)
        self._slots: dict[Key, int] = {}
        """All residents, readable or being written."""
        self._writing: dict[Key, Hashable] = {}
        """Blocks being written, and the id of the request that does it."""
        self._pins: Counter[Key] = Counter()
        """Blocks being read or held: by how many loads and holders."""
        self._away: set[int] = set()
        """Slots that hold no resident but may still be read or written by a transfer."""
        self._lives: dict[Hashable, Life] = {}
        self._events: deque[Event] = deque()

    # Looking.

    def lookup(self, key: Key, request: Request | None = None) -> Lookup:
        """What there is of one block. Counts as no access; may be asked any number of times."""
        if key not in self._slots:
            return Lookup.MISS
        return Lookup.PENDING if key in self._writing else Lookup.HIT

    def match_prefix(self, keys: Iterable[Key]) -> int:
        """Length of the leading run of `keys` that is readable now. Counts as no access."""
        slots, writing = self._slots, self._writing
        length = 0
        for key in keys:
            if key not in slots or key in writing:
                break
            length += 1
        return length

    def __contains__(self, key: Key) -> bool:
        """Whether the block is resident, readable or not."""
        return key in self._slots

    def __len__(self) -> int:
        """Residents, readable or not."""
        return len(self._slots)

    # Storing.

    def prepare_store(self, keys: Iterable[Key], request: Request, fetch: bool = False) -> StorePlan | None:
        """Make room for those of `keys` that are not resident. All of `keys` are safe from eviction by this call.

        Args:
            keys: the offer, in chain order.
            request: whose blocks they are.
            fetch: the bytes come up from a tier and not from the request, which waits for them; no miss is counted, and
                they are part of what the request used once it loads them.

        Returns:
            The plan (empty if all are resident), or None if there is no room; then nothing has changed.
        """
        offered = list(dict.fromkeys(keys))
        slots = self._slots
        new = list(filterfalse(slots.__contains__, offered))
        life = self._lives.get(request.id) or Life(request)
        offer = Offer(new, request, offered, life.parent(), life.taught(new))
        shield: Collection[Key] = ()
        if not fetch:
            offer, shield = self._worth(offer, life)
            new = list(offer.keys)
        need = len(new) - len(self._free)
        evicted: list[Key] = []
        if need > 0:
            keep = self._kept(offered, life, shield)
            if need > len(slots) - len(keep):
                self._refuse(need, len(new))
                return None
            evicted = self._evict(need, keep, offer)
            life.displaced += need
        self._lives[request.id] = life
        if not fetch:
            life.gap = next(iter(offer.declined), None)
            self.counters.declined += len(offer.declined)
        if life.finished:
            life.finished = False
        if len(new) < len(offered):
            life.read(filterfalse(self._writing.__contains__, filter(slots.__contains__, offered)))
        if not fetch:
            self.counters.misses += len(new) - len(offer.repeat)
        taken = self._free.take(len(new))
        if new:
            slots.update(zip(new, taken, strict=True))
            self._writing.update(dict.fromkeys(new, request.id))
            if fetch:
                life.fetch(new)
            else:
                life.store(new)
        if new or offer.declined:
            self._hinted.admit(offer)
        return StorePlan(new, taken, evicted, self.generation)

    def complete_store(
        self, keys: Iterable[Key], request: Request, success: bool = True, generation: int | None = None
    ) -> list[Key]:
        """The bytes of these blocks have arrived, or will not. Blocks not being written by `request` are passed over.

        Args:
            keys: blocks of one or several stores of the request, in any order.
            request: the one that prepared the store.
            success: False frees the slots; nothing is learned.
            generation: the plan's; a completion from before a reset is then known as such.

        Returns:
            The blocks it applied to, in chain order.
        """
        named = set(keys)
        life = self._lives.get(request.id) if generation in (None, self.generation) else None
        done = list(filter(named.__contains__, life.writing)) if life else []
        self.counters.late += len(named) - len(done)
        if not life or not done:
            return done
        if success:
            self.counters.stored += len(done)
            self._hinted.commit(done, request)
            self._events.append(Event(EventKind.STORED, tuple(done)))
            self._land(done, life)
        else:
            self._free.give_back(self._fail(done, life))
        self._retire(life)
        return done

    # Loading.

    def prepare_load(self, keys: Iterable[Key], request: Request) -> LoadPlan:
        """Pin blocks for reading; they stay until `complete_load`.

        Raises:
            BlockNotReady: one of them is not readable; then none is pinned.
        """
        wanted = list(dict.fromkeys(keys))
        slots = self._ready_slots(wanted)
        if not wanted:
            return LoadPlan([], [], self.generation)
        life = self._lives.setdefault(request.id, Life(request))
        life.finished = False
        self.counters.hits += life.read(wanted)
        life.reading.update(wanted)
        self._pins.update(wanted)
        return LoadPlan(wanted, slots, self.generation)

    def complete_load(self, keys: Iterable[Key], request: Request, generation: int | None = None) -> None:
        """The request has read these blocks; each call releases one pin a block, if the request holds one."""
        named = set(keys)
        life = self._lives.get(request.id) if generation in (None, self.generation) else None
        done = named.intersection(life.reading) if life else set()
        self.counters.late += len(named) - len(done)
        if not life:
            return
        self.counters.loaded += len(done)
        discount(self._pins, done)
        discount(life.reading, done)
        self._retire(life)

    # Holding.

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def room(self) -> int:
        """Slots that are free or could be freed: the blocks that are neither written, read, nor held may leave."""
        return len(self._free) + len(self._slots) - len(self._writing) - len(self._pins)

    def busy_slots(self) -> list[int]:
        """Slots whose blocks are being written, read, or held."""
        return [self._slots[key] for key in (*self._writing, *self._pins)]

    def hold(self, keys: Iterable[Key]) -> list[int]:
        """Keep distinct readable blocks from leaving until `release`. Counts as no access.

        Returns:
            Their slots.

        Raises:
            BlockNotReady: one of them is not readable; then none is held.
        """
        wanted = list(keys)
        slots = self._ready_slots(wanted)
        self._pins.update(wanted)
        return slots

    def release(self, keys: Iterable[Key]) -> None:
        """Undo one `hold` of each of these blocks. Holds end with a reset: release none from before it."""
        discount(self._pins, list(keys))

    def withdraw(self, n: int) -> list[tuple[Key, int]]:
        """Evict up to n blocks ahead of need. Their slots, bytes untouched, stay out of use until `reclaim`."""
        keep = self._hinted.protect({*self._pins, *self._writing})
        n = min(n, len(self._slots) - len(keep))
        if n <= 0:
            return []
        victims = self._choose(n, keep, Offer([object() for _ in range(n)], Request(object())))
        slots = list(map(self._slots.pop, victims))
        self._away.update(slots)
        return list(zip(victims, slots, strict=True))

    def quarantine(self, keys: Iterable[Key], request: Request) -> list[int]:
        """Give up stores whose bytes may still arrive: they have failed, but their slots stay out of use until `reclaim`.

        Returns:
            The slots; none for blocks that `request` is not writing.
        """
        life = self._lives.get(request.id)
        lost = [key for key in dict.fromkeys(keys) if life and key in life.writing]
        if not life or not lost:
            return []
        slots = self._fail(lost, life)
        self._away.update(slots)
        self._retire(life)
        return slots

    def reclaim(self, slots: Iterable[int]) -> None:
        """Nobody reads or writes these slots any more; those that are out of use become free."""
        back = [slot for slot in dict.fromkeys(slots) if slot in self._away]
        self._away.difference_update(back)
        self._free.give_back(back)

    # Ending.

    def finish(self, request: Request) -> None:
        """The request asks for nothing more; its use of its blocks is counted now, once. Its transfers may still be in
        flight, and its completions may come afterwards."""
        life = self._lives.get(request.id)
        if life is None or life.finished:
            return
        life.finished = True
        chain = life.order(self._slots)
        stored = set(compress(chain, map(life.chain.__getitem__, chain)))
        self._hinted.finish(chain, stored, request)
        if self.admission:
            self.admission.finish(chain, stored, request)
        self._retire(life)

    def reset(self, away: Iterable[int] = ()) -> None:
        """Drop every block. Completions of earlier stores and loads will change nothing; live requests may go on.

        Args:
            away: slots that a transfer may still read or write: out of use until `reclaim`, as those before.
        """
        self.generation += 1
        self._slots.clear()
        self._writing.clear()
        self._pins.clear()
        self._lives.clear()
        self._away.update(away)
        self._free.clear(but=self._away)
        self._hinted.clear()
        if self.admission:
            self.admission.clear()
        self._events.append(Event(EventKind.CLEARED))

    # Telling.

    def take_events(self) -> list[Event]:
        """What changed since the last call, in order."""
        events = list(self._events)
        self._events.clear()
        return events

    def stats(self) -> Stats:
        """Sizes and counters now."""
        writing = len(self._writing) + len(self._away)
        return Stats(
            capacity=self.capacity,
            free=len(self._free),
            writing=writing,
            ready=len(self._slots) - len(self._writing),
            pinned=len(self._pins),
            lists=self.policy.sizes(),
            evicted=dict(self.policy.evictions),
            counters=deepcopy(self.counters),
            generation=self.generation,
        )

    # Steps.

    def _worth(self, offer: Offer, life: Life) -> tuple[Offer, Collection[Key]]:
        """What of an offer is to be stored: all of it, or a head, as far as policy and rule find it worth the room; and what
        may not leave for it."""
        count = len(offer.keys)
        need = count - len(self._free)
        shield: Collection[Key] = ()
        if life.gap is not None and life.gap not in offer.offered:
            count = 0
        elif need > 0:
            count = self._hinted.accept(offer, need)
            if self.admission:
                shield = self.admission.shield(offer, need + life.displaced)
                keep = self._kept(offer.offered, life, shield)
                count = min(count, len(self._free) + len(self._slots) - len(keep))
        if count < len(offer.keys):
            named = {*offer.keys[:count]}
            offer = offer._replace(
                keys=offer.keys[:count],
                declined=offer.keys[count:],
                repeat=[key for key in offer.repeat if key in named],
            )
        return offer, shield

    def _kept(self, offered: Sequence[Key], life: Life, shield: Iterable[Key] = ()) -> set[Key]:
        """Residents that must not leave to make room for this offer."""
        keep = {*self._pins, *self._writing}
        keep.update(filter(self._slots.__contains__, offered))
        keep.update(filter(self._slots.__contains__, life.chain))
        keep.update(filter(self._slots.__contains__, shield))
        return self._hinted.protect(keep)

    def _evict(self, n: int, keep: set[Key], offer: Offer) -> list[Key]:
        victims = self._choose(n, keep, offer)
        self._free.give_back(map(self._slots.pop, victims))
        return victims

    def _choose(self, n: int, keep: set[Key], offer: Offer) -> list[Key]:
        victims = evict_checked(self._hinted, n, keep, offer)
        if self.admission:
            self.admission.forget(victims)
        self._events.append(Event(EventKind.REMOVED, tuple(victims)))
        return victims

    def _ready_slots(self, keys: Sequence[Key]) -> list[int]:
        slots, writing = self._slots, self._writing
        if not writing.keys().isdisjoint(keys) or not all(map(slots.__contains__, keys)):
            key = next(key for key in keys if key not in slots or key in writing)
            state = "still being written" if key in writing else "not resident"
            raise BlockNotReady(f"block {key!r} cannot be loaded: it is {state}; load only what lookup calls a HIT")
        return list(map(slots.__getitem__, keys))

    def _land(self, keys: Sequence[Key], life: Life) -> None:
        """End stores of the request."""
        deque(map(self._writing.pop, keys), maxlen=0)
        life.land(keys)

    def _fail(self, keys: Sequence[Key], life: Life) -> list[int]:
        """End stores that bring no bytes. Returns their slots."""
        self.counters.failed += len(keys)
        self._hinted.forget(keys)
        life.drop(keys)
        self._land(keys, life)
        return list(map(self._slots.pop, keys))

    def _refuse(self, need: int, offered: int) -> None:
        if offered > self.capacity:
            reason = "size"
        elif need > len(self._slots) - len({*self._pins, *self._writing}):
            reason = "busy"
        else:
            reason = "protected"
        self.counters.refused[reason] += 1

    def _retire(self, life: Life) -> None:
        if life.over:
            del self._lives[life.request.id]


def discount(counts: Counter[Key], keys: Collection[Key]) -> None:
    """Take one off each of distinct keys; those that come to zero leave."""
    before = list(map(counts.pop, keys))
    if sum(before) > len(before):
        counts.update({key: count - 1 for key, count in zip(keys, before, strict=True) if count > 1})
