"""Who lives in host memory."""

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from typing import NamedTuple, TypeVar

from kvloft._table import Index, distinct
from kvloft.errors import BlockNotReady, ConfigError
from kvloft.policies import Offer, Policy, make_policy
from kvloft.policies.admission import Admission
from kvloft.policies.base import evict_checked
from kvloft.policies.hinted import Hinted
from kvloft.policies.open_chains import TailsFirst
from kvloft.pool.life import Life
from kvloft.request import Key, Request
from kvloft.telemetry import Counters, Event, EventKind, Stats

Answer = TypeVar("Answer")


class Lookup(Enum):
    """What the pool has of a block."""

    MISS = "miss"
    PENDING = "pending"
    """Its bytes are on the way."""
    HIT = "hit"

    __hash__ = object.__hash__
    """An Enum's own hash runs Python code, and answers are translated for every block looked up."""


_LOOKUPS = (Lookup.MISS, Lookup.PENDING, Lookup.HIT)
"""By `Index.state`."""


class StorePlan(NamedTuple):
    """An accepted store.

    Args:
        keys: the blocks to write: what was not resident, in offer order.
        slots: where to write them, one slot a key.
        evicted: blocks that left for it, in the order of their going. Their slots may be among `slots`.
        generation: the pool's at that time; give it to `complete_store` where completions may outlive a reset.
    """

    keys: list[Key]
    slots: "array[int]"
    evicted: list[Key]
    generation: int


class LoadPlan(NamedTuple):
    """Blocks pinned for reading: distinct, in the order asked for, with their slots."""

    keys: list[Key]
    slots: "array[int]"
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
        self._hinted = Hinted(TailsFirst.over(self.policy), clock, quotas)
        self.generation = 0
        self.counters = Counters()
        self._index = Index(capacity)
        """All residents, readable or being written: their slots, and whether they are written or pinned."""
        self._lives: dict[Hashable, Life] = {}
        self._events: deque[Event] = deque()

    # Looking.

    def lookup(self, key: Key, request: Request | None = None) -> Lookup:
        """What there is of one block. Counts as no access; may be asked any number of times."""
        return _LOOKUPS[self._index.state(key)]

    def answers(self, miss: Answer, pending: Answer, hit: Answer) -> Callable[..., Answer]:
        """`lookup` in a caller's own words, for one that asks for thousands of blocks, one by one: give it a key."""
        return self._index.answers(miss, pending, hit)

    def match_prefix(self, keys: Iterable[Key]) -> int:
        """Length of the leading run of `keys` that is readable now. Counts as no access."""
        return self._index.leading(keys)

    def __contains__(self, key: Key) -> bool:
        """Whether the block is resident, readable or not."""
        return key in self._index

    def __len__(self) -> int:
        """Residents, readable or not."""
        return len(self._index)

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
        offered = distinct(keys)
        index = self._index
        new = index.absent(offered)
        resident = index.present(offered) if len(new) < len(offered) else []
        life = self._lives.get(request.id) or Life(request)
        offer = Offer(new, request, offered, life.parent(), life.taught(new))
        shield: Collection[Key] = ()
        if not fetch:
            offer, shield = self._worth(offer, life, resident)
            new = list(offer.keys)
        need = len(new) - index.free
        evicted: list[Key] = []
        if need > 0:
            keep = self._kept(resident, life, shield)
            if need > len(index) - len(keep):
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
        if resident:
            life.read(index.ready(resident))
        if not fetch:
            self.counters.misses += len(new) - len(offer.repeat)
        taken = index.take(new)
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
        named = keys if isinstance(keys, set) else set(keys)
        life = self._lives.get(request.id) if generation in (None, self.generation) else None
        done = life.written(named) if life else []
        self.counters.late += len(named) - len(done)
        if not life or not done:
            return done
        if success:
            self.counters.stored += len(done)
            self._hinted.commit(done, request)
            self._events.append(Event(EventKind.STORED, tuple(done)))
            self._index.land(done)
            life.land(done)
        else:
            self._fail(done, life)
        self._retire(life)
        return done

    # Loading.

    def prepare_load(self, keys: Iterable[Key], request: Request) -> LoadPlan:
        """Pin blocks for reading; they stay until `complete_load`.

        Raises:
            BlockNotReady: one of them is not readable; then none is pinned.
        """
        wanted = distinct(keys)
        slots = self._pin(wanted)
        if not wanted:
            return LoadPlan(wanted, slots, self.generation)
        life = self._lives.setdefault(request.id, Life(request))
        life.finished = False
        self.counters.hits += life.read(wanted)
        life.reading.append(wanted.copy())
        return LoadPlan(wanted, slots, self.generation)

    def complete_load(self, keys: Iterable[Key], request: Request, generation: int | None = None) -> None:
        """The request has read these blocks; each call releases one pin a block, if the request holds one."""
        named = keys if isinstance(keys, set) else set(keys)
        life = self._lives.get(request.id) if generation in (None, self.generation) else None
        done = life.release(named) if life else []
        self.counters.late += len(named) - len(done)
        if not life:
            return
        self.counters.loaded += len(done)
        self._index.unpin(done)
        self._retire(life)

    # Holding.

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return self._index.free

    @property
    def room(self) -> int:
        """Slots that are free or could be freed: the blocks that are neither written, read, nor held may leave."""
        index = self._index
        return index.free + len(index) - index.writing - index.pinned

    def busy_slots(self) -> list[int]:
        """Slots whose blocks are being written, read, or held."""
        return self._index.slots(self._index.busy()).tolist()

    def hold(self, keys: Iterable[Key]) -> list[int]:
        """Keep distinct readable blocks from leaving until `release`. Counts as no access.

        Returns:
            Their slots.

        Raises:
            BlockNotReady: one of them is not readable; then none is held.
        """
        return self._pin(list(keys)).tolist()

    def release(self, keys: Iterable[Key]) -> None:
        """Undo one `hold` of each of these blocks. Holds end with a reset: release none from before it."""
        self._index.unpin(keys)

    def withdraw(self, n: int) -> list[tuple[Key, int]]:
        """Evict up to n blocks ahead of need. Their slots, bytes untouched, stay out of use until `reclaim`."""
        keep = self._hinted.protect({*self._index.busy()})
        n = min(n, len(self._index) - len(keep))
        if n <= 0:
            return []
        victims = self._choose(n, keep, Offer([object() for _ in range(n)], Request(object())))
        return list(zip(victims, self._index.drop(victims, away=True), strict=True))

    def quarantine(self, keys: Iterable[Key], request: Request) -> list[int]:
        """Give up stores whose bytes may still arrive: they have failed, but their slots stay out of use until `reclaim`.

        Returns:
            The slots; none for blocks that `request` is not writing.
        """
        life = self._lives.get(request.id)
        lost = life.written(set(keys)) if life else []
        if not life or not lost:
            return []
        slots = self._fail(lost, life, away=True)
        self._retire(life)
        return slots.tolist()

    def reclaim(self, slots: Iterable[int]) -> None:
        """Nobody reads or writes these slots any more; those that are out of use become free."""
        self._index.reclaim(slots)

    # Ending.

    def finish(self, request: Request) -> None:
        """The request asks for nothing more; its use of its blocks is counted now, once. Its transfers may still be in
        flight, and its completions may come afterwards."""
        life = self._lives.get(request.id)
        if life is None or life.finished:
            return
        life.finished = True
        chain = life.order(self._index)
        stored = life.stored(chain)
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
        self._index.clear(away)
        self._lives.clear()
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
        index = self._index
        return Stats(
            capacity=self.capacity,
            free=index.free,
            writing=index.writing + index.away,
            ready=len(index) - index.writing,
            pinned=index.pinned,
            lists=self.policy.sizes(),
            evicted=dict(self.policy.evictions),
            counters=deepcopy(self.counters),
            generation=self.generation,
        )

    # Steps.

    def _worth(self, offer: Offer, life: Life, resident: list[Key]) -> tuple[Offer, Collection[Key]]:
        """What of an offer is to be stored: all of it, or a head, as far as policy and rule find it worth the room; and what
        may not leave for it."""
        count = len(offer.keys)
        need = count - self._index.free
        shield: Collection[Key] = ()
        if life.gap is not None and life.gap not in offer.offered:
            count = 0
        elif need > 0:
            count = self._hinted.accept(offer, need)
            if self.admission:
                shield = self.admission.shield(offer, need + life.displaced)
                keep = self._kept(resident, life, shield)
                count = min(count, self._index.free + len(self._index) - len(keep))
        if count < len(offer.keys):
            named = {*offer.keys[:count]}
            offer = offer._replace(
                keys=offer.keys[:count],
                declined=offer.keys[count:],
                repeat=[key for key in offer.repeat if key in named],
            )
        return offer, shield

    def _kept(self, offered: list[Key], life: Life, shield: Iterable[Key] = ()) -> set[Key]:
        """Residents that must not leave to make room for an offer with these among it."""
        keep = {*self._index.busy(), *offered, *self._index.present(life.chain.keys()), *self._index.present(shield)}
        return self._hinted.protect(keep)

    def _evict(self, n: int, keep: set[Key], offer: Offer) -> list[Key]:
        victims = self._choose(n, keep, offer)
        self._index.drop(victims)
        return victims

    def _choose(self, n: int, keep: set[Key], offer: Offer) -> list[Key]:
        victims = evict_checked(self._hinted, n, keep, offer)
        if self.admission:
            self.admission.forget(victims)
        self._events.append(Event(EventKind.REMOVED, tuple(victims)))
        return victims

    def _pin(self, keys: Sequence[Key]) -> "array[int]":
        slots = self._index.pin(keys)
        if slots is None:
            key, state = next((key, state) for key in keys if (state := self.lookup(key)) is not Lookup.HIT)
            what = "not resident" if state is Lookup.MISS else "still being written"
            raise BlockNotReady(f"block {key!r} cannot be loaded: it is {what}; load only what lookup calls a HIT")
        return slots

    def _fail(self, keys: Sequence[Key], life: Life, away: bool = False) -> "array[int]":
        """End stores that bring no bytes. Returns their slots, which are free or away."""
        self.counters.failed += len(keys)
        self._hinted.forget(keys)
        life.drop(keys)
        life.land(keys)
        return self._index.drop(keys, away=away)

    def _refuse(self, need: int, offered: int) -> None:
        if offered > self.capacity:
            reason = "size"
        elif need > self.room - self.free:
            reason = "busy"
        else:
            reason = "protected"
        self.counters.refused[reason] += 1

    def _retire(self, life: Life) -> None:
        if life.over:
            del self._lives[life.request.id]
