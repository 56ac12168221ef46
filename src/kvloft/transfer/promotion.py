"""Up: blocks that waiting requests asked for come from the tiers into host memory."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import islice

from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, JobResult, Presence
from kvloft.transfer.latency import PrefillRate
from kvloft.transfer.ledger import SlotLedger
from kvloft.transfer.limits import CascadeConfig, slots_of
from kvloft.transfer.link import Course, Job, Link
from kvloft.transfer.loads import Loads
from kvloft.transfer.waiting import Load, Wait


class Promoter:
    """Brings blocks up and keeps them for those who wait.

    Room is taken for a request all at once, for as much of what it needs as may ever fit; a request that waits for room
    owns none. So no two requests can each hold what the other needs. What is beyond that is a miss: the prefix that fits
    is served.
    """

    def __init__(
        self,
        pool: BlockPool,
        links: Sequence[Link],
        view: Callable[[int], Buffer],
        config: CascadeConfig,
        rate: PrefillRate,
        ledger: SlotLedger,
    ) -> None:
        self._pool = pool
        self._links = links
        self._config = config
        self._rate = rate
        self._room = slots_of(pool.capacity, config.promote_share)
        self._waits: OrderedDict[Hashable, Wait] = OrderedDict()
        """By request id, the one that asked longest ago first."""
        self._hungry: dict[Hashable, Wait] = {}
        """Those that want blocks for which no room has been taken, first come first."""
        self._loads = Loads(pool, links, view, config, ledger)
        self._holders: dict[Key, set[Hashable]] = {}
        """Blocks kept, and for which requests."""
        self._sources: dict[Hashable, dict[Key, str]] = {}
        """Of requests that have loaded: the tiers that their blocks came from."""
        self._probes: dict[int, tuple[list[Key], Request]] = {}
        """By tier: blocks with which to find out how it does now."""
        self._asking: Hashable = None
        self._run: list[Key] = []
        """Blocks just found ready for the request that is asking, as long as it does not wait."""
        self._now = 0.0
        self.counters: Counter[str] = Counter()

    # Looking.

    def lookup(self, key: Key, request: Request, tiers: Collection[str] | None, now: Callable[[], float]) -> Lookup:
        """Whether the request may load the block now, later, or never."""
        if request.id != self._asking:
            self._turn_to(request, now())
        found = self._pool.lookup(key)
        wait = self._waits.get(request.id)
        if found is Lookup.HIT:
            if wait is None:
                self._run.append(key)
            elif key not in wait.held:
                wait.ready[key] = None
            return found
        if wait is not None:
            if self._now >= wait.deadline or key in wait.refused:
                return Lookup.MISS
            if key in wait.loads or key in wait.wanted or key in wait.unknown:
                return Lookup.PENDING
        if found is Lookup.PENDING:
            load = self._loads.get(key)
            if load is not None and load.probe:
                return Lookup.MISS
            self._join(load, wait or self._wait(request))
            return found
        return self._look_below(key, request, wait, tiers)

    def _turn_to(self, request: Request, now: float) -> None:
        self._asking = request.id
        self._run = []
        self._now = now
        wait = self._waits.get(request.id)
        if wait is not None:
            wait.seen = now
            self._waits.move_to_end(request.id)

    def _wait(self, request: Request) -> Wait:
        wait = Wait(request, self._now + self._config.pending_seconds, self._now, dict.fromkeys(self._run))
        wait.patience = self._now + self._config.lookup_seconds
        self._waits[request.id] = wait
        self._run = []
        return wait

    def _join(self, load: Load | None, wait: Wait) -> None:
        """Share a load under way, if it is one and not another request's store."""
        if load is not None and not load.probe:
            load.waits[wait.request.id] = wait
            wait.loads[load.key] = load
            self._hungry[wait.request.id] = wait

    def _look_below(self, key: Key, request: Request, wait: Wait | None, tiers: Collection[str] | None) -> Lookup:
        for link in self._links:
            if not self._serves(link, key, wait, tiers):
                continue
            if not link.breakers[Course.UP].closed:
                if link.index not in self._probes and link.breakers[Course.UP].due(self._now):
                    self._probes[link.index] = [key], request
                continue
            presence = link.look([key], self._now)[0]
            if presence is Presence.MISS:
                continue
            if presence is Presence.UNKNOWN and wait is not None and self._now >= wait.patience:
                continue
            wait = wait or self._wait(request)
            if presence is Presence.HIT:
                self._want(key, link, wait)
            else:
                wait.unknown[key] = link.index
                self._hungry[request.id] = wait
            return Lookup.PENDING
        return Lookup.MISS

    @staticmethod
    def _serves(link: Link, key: Key, wait: Wait | None, tiers: Collection[str] | None) -> bool:
        if tiers is not None and link.name not in tiers:
            return False
        return wait is None or (link.index not in wait.shunned and (link.index, key) not in wait.failed)

    def _want(self, key: Key, link: Link, wait: Wait) -> None:
        wait.wanted[key] = link.index
        self._hungry[wait.request.id] = wait

    # Each step.

    def step(self, now: float) -> None:
        """Give up what took too long, take room, submit."""
        self._now = now
        self._asking = None
        self._expire(now)
        self._ask_again(now)
        self._seat(now)
        self._probe(now)
        for link in self._links:
            self._loads.submit(link, now)

    def _expire(self, now: float) -> None:
        """Let go of requests that ask no more, and of the wishes of those whose time is over."""
        while self._waits:
            wait = next(iter(self._waits.values()))
            if now - wait.seen <= self._config.idle_seconds:
                break
            self.counters["abandoned"] += 1
            self.forget(wait.request)
        for wait in [wait for wait in self._hungry.values() if now >= wait.deadline]:
            self.counters["expired"] += len(wait.wanted) + len(wait.unknown)
            wait.wanted.clear()
            wait.unknown.clear()
            del self._hungry[wait.request.id]

    def _ask_again(self, now: float) -> None:
        """Ask each tier once for all blocks that it is looking up."""
        for link in self._links:
            asked = [
                (key, wait) for wait in self._hungry.values() for key, index in wait.unknown.items() if index == link.index
            ]
            if not asked:
                continue
            for (key, wait), presence in zip(asked, link.look([key for key, _ in asked], now), strict=True):
                if presence is Presence.UNKNOWN and now < wait.patience:
                    continue
                del wait.unknown[key]
                if presence is Presence.HIT:
                    self._want(key, link, wait)
                else:
                    wait.failed.add((link.index, key))

    def _seat(self, now: float) -> None:
        """Take room for those who want blocks, first come first. Who must wait for room keeps the later ones waiting too:
        else a small request after the other would pass a large one."""
        for identity, wait in list(self._hungry.items()):
            if not wait.owns and min(len(wait.wanted), self._room - self._loads.set_aside) > self._left:
                break
            self._settle(wait)
            self._shun_slow(wait, now)
            if not self._take_room(wait):
                break
            if not wait.unknown:
                del self._hungry[identity]

    def _settle(self, wait: Wait) -> None:
        """Wishes that have come true, or are under way for another, since they were made."""
        for key in list(wait.wanted):
            found = self._pool.lookup(key)
            if found is Lookup.MISS:
                continue
            del wait.wanted[key]
            if found is Lookup.HIT:
                wait.ready[key] = None
            else:
                self._join(self._loads.get(key), wait)

    def _shun_slow(self, wait: Wait, now: float) -> None:
        """Leave tiers that would take longer than recomputing, but measure each of them now and then."""
        for index, blocks in Counter(wait.wanted.values()).items():
            link = self._links[index]
            recompute = self._rate.seconds(blocks * self._config.block_tokens)
            load = link.latency.predict(self._loads.ahead(link) + blocks)
            if recompute is None or load is None or load <= recompute:
                continue
            keys = [key for key, tier in wait.wanted.items() if tier == index]
            if now >= link.next_probe:
                link.next_probe = now + self._config.probe_seconds
                self._probes[index] = keys, wait.request
            link.counters["shunned"] += blocks
            wait.shunned.add(index)
            for key in keys:
                del wait.wanted[key]

    @property
    def taken(self) -> int:
        """Slots that promotions use: on their way, set aside, or kept for those who wait."""
        return len(self._loads) + len(self._holders) + self._loads.set_aside

    @property
    def _left(self) -> int:
        """Slots that may be taken now."""
        return min(self._room - self.taken, self._pool.room)

    def _take_room(self, wait: Wait) -> bool:
        """Hold what is ready and take room for what is wanted; False if others have to make room first."""
        ready = [key for key in wait.ready if self._pool.lookup(key) is Lookup.HIT]
        wait.ready = dict.fromkeys(ready)
        unheld = [key for key in ready if key not in self._holders]
        left = self._left
        need = len(unheld) + len(wait.wanted)
        if wait.wanted and need > left and not wait.owns and min(need, self._room - self._loads.set_aside) > left:
            return False
        if len(unheld) > left:
            self._refuse(wait, len(wait.wanted))
            return True
        self._hold(ready, wait)
        wait.ready.clear()
        self._refuse(wait, len(wait.wanted) - self._left)
        if not wait.wanted:
            return True
        plan = self._pool.prepare_store(wait.wanted, wait.request, fetch=True)
        if plan is None:
            self._refuse(wait, len(wait.wanted))
            return True
        self._loads.start(plan, wait.wanted, wait)
        wait.wanted.clear()
        return True

    def _refuse(self, wait: Wait, n: int) -> None:
        """Make misses of the last n wishes."""
        if n > 0:
            refused = list(islice(reversed(wait.wanted), n))
            self.counters["refused"] += len(refused)
            wait.refused.update(refused)
            for key in refused:
                del wait.wanted[key]

    def _probe(self, now: float) -> None:
        """See how tiers do: with one block where a tier had failed; where it was slow with as many as a job may have, for
        what few take says little of many."""
        for index, (keys, request) in list(self._probes.items()):
            del self._probes[index]
            link, breaker = self._links[index], self._links[index].breakers[Course.UP]
            if breaker.closed or breaker.due(now):
                most = min(self._left, self._loads.room(link), self._config.job_blocks if breaker.closed else 1)
                missing = [key for key in keys if self._pool.lookup(key) is Lookup.MISS]
                self._loads.probe(link, missing[: max(most, 0)], request.tenant, now)

    # Answers.

    def land(self, link: Link, job: Job, result: JobResult) -> list[Key]:
        """A load was answered. Returns the blocks that are now ready."""
        landed = self._loads.land(link, job, result)
        kept: dict[Hashable, tuple[Wait, list[Key]]] = {}
        for load in landed:
            for identity, wait in load.waits.items():
                kept.setdefault(identity, (wait, []))[1].append(load.key)
        for wait, found in kept.values():
            self._hold(found, wait)
        return [load.key for load in landed]

    def give_up(self, job: Job) -> None:
        """A load is overdue: those who wait for it get a miss."""
        self._loads.give_up(job)

    # Ending.

    def loading(self, request: Request) -> None:
        """The request has pinned what it reads: it waits no more."""
        wait = self._waits.get(request.id)
        if wait is not None:
            self.forget(request)
            self._sources.setdefault(request.id, {}).update(wait.sources)

    def source(self, key: Key, request: Request) -> str | None:
        """The tier that the block came from for this request; None if it was in host memory."""
        wait = self._waits.get(request.id)
        sources = wait.sources if wait else self._sources.get(request.id, {})
        return sources.get(key)

    def finish(self, request: Request) -> None:
        """The request has ended."""
        self.forget(request)
        self._sources.pop(request.id, None)

    def forget(self, request: Request) -> None:
        """Release all that is kept for a request, and what is under way only for it as far as it can be called back."""
        if self._asking == request.id:
            self._asking = None
        wait = self._waits.pop(request.id, None)
        if wait is None:
            return
        self._hungry.pop(request.id, None)
        self._let_go(wait)
        self._loads.desert(wait)

    def reset(self) -> None:
        """Everything in host memory is being dropped."""
        self._asking = None
        self._waits.clear()
        self._hungry.clear()
        self._loads.reset()
        self._holders.clear()
        self._sources.clear()
        self._probes.clear()

    @property
    def pending(self) -> bool:
        """Whether a step may bring something nearer."""
        return bool(self._hungry or self._probes or self._loads.queued)

    def waiting_seconds(self, now: float) -> float:
        """For how long the request that has waited longest has."""
        since = min((wait.deadline for wait in self._waits.values()), default=now + self._config.pending_seconds)
        return max(0.0, now - (since - self._config.pending_seconds))

    def sizes(self) -> dict[str, int]:
        """Requests and blocks, by what they are doing."""
        return {
            "waiting": len(self._waits),
            "wanted": sum(len(wait.wanted) + len(wait.unknown) for wait in self._hungry.values()),
            "loading": len(self._loads),
            "held": len(self._holders),
            "set_aside": self._loads.set_aside,
        }

    # Small steps.

    def _hold(self, keys: Sequence[Key], wait: Wait) -> None:
        self._pool.hold([key for key in keys if key not in self._holders])
        for key in keys:
            self._holders.setdefault(key, set()).add(wait.request.id)
            wait.held[key] = None

    def _let_go(self, wait: Wait) -> None:
        """Keep no longer what only this request waits for."""
        free = []
        for key in wait.held:
            holders = self._holders[key]
            holders.discard(wait.request.id)
            if not holders:
                del self._holders[key]
                free.append(key)
        self._pool.release(free)
