"""Down: blocks in host memory are written to the tiers in the background."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kvloft.pool import BlockPool, Lookup
from kvloft.request import Key
from kvloft.tiers.base import Buffer, JobResult, Presence
from kvloft.transfer.ledger import SlotLedger
from kvloft.transfer.limits import Admission, CascadeConfig, slots_each, slots_of
from kvloft.transfer.link import Course, Job, Link


class Demoter:
    """Writes blocks down while few enough slots are in use for it; beyond that demotions are dropped and counted, so that
    stores never wait for a tier."""

    def __init__(
        self,
        pool: BlockPool,
        links: Sequence[Link],
        view: Callable[[int], Buffer],
        config: CascadeConfig,
        ledger: SlotLedger,
    ) -> None:
        self._pool = pool
        self._links = links
        self._view = view
        self._config = config
        self._per_link = slots_each(pool.capacity, config.demote_share, len(links))
        self._queue_limit = max(1, int(pool.capacity * config.queue_share))
        self._clean = slots_of(pool.capacity, config.clean_share)
        self._queues: list[OrderedDict[Key, None]] = [OrderedDict() for _ in links]
        self._flying: list[set[Key]] = [set() for _ in links]
        self._seen: OrderedDict[Key, None] = OrderedDict()
        """Blocks stored once, the oldest first."""
        self._seen_limit = int(pool.capacity * config.ghost_share)
        self._ledger = ledger
        self._leaving: set[int] = set()
        """Slots whose blocks have left host memory and are being written down."""

    # Hearing of blocks.

    def stored(self, keys: Sequence[Key]) -> None:
        """Blocks that a request has stored."""
        if self._config.admission is Admission.EVERYTHING:
            self._offer(keys, self._links)
        elif self._config.admission is Admission.SECOND_USE:
            self._offer([key for key in keys if key in self._seen], self._links)
            self._seen.update(dict.fromkeys(keys))
            while len(self._seen) > self._seen_limit:
                self._seen.popitem(last=False)

    def used(self, keys: Sequence[Key]) -> None:
        """Blocks in host memory that a request uses again."""
        if self._config.admission is Admission.SECOND_USE:
            self._offer(keys, self._links)

    def promoted(self, keys: Sequence[Key], source: Link) -> None:
        """Blocks that have come up; the tiers above that one may lack them."""
        if self._config.admission is not Admission.WRITE_BACK:
            self._offer(keys, self._links[: source.index])

    def _offer(self, keys: Sequence[Key], links: Iterable[Link]) -> None:
        for link in links:
            queue, flying = self._queues[link.index], self._flying[link.index]
            new = [key for key in keys if key not in queue and key not in flying]
            # Without a slot to spare for this tier nothing would ever leave the queue.
            limit = self._queue_limit if self._per_link[link.index] else 0
            fits = new[: max(0, limit - len(queue))]
            queue.update(dict.fromkeys(fits))
            link.counters["dropped_backpressure"] += len(new) - len(fits)

    # Each step.

    def step(self, now: float) -> None:
        """Start writing what waits and may go."""
        for link in self._links:
            if link.breakers[Course.DOWN].closed or self._may_take(link, now):
                self._feed(link, now)
            else:
                link.counters["dropped_open"] += len(self._queues[link.index])
                self._queues[link.index].clear()
        if self._config.admission is Admission.WRITE_BACK:
            self._write_back(now)

    def _feed(self, link: Link, now: float) -> None:
        """Write from the queue."""
        queue, breaker = self._queues[link.index], link.breakers[Course.DOWN]
        looked = 0
        while queue and looked < self._config.step_blocks and self._may_take(link, now):
            batch = list(islice(queue, min(self._config.job_blocks, self._room(link))))
            if not breaker.closed:
                del batch[1:]
            looked += len(batch)
            for key in batch:
                del queue[key]
            keys = [key for key in batch if self._pool.lookup(key) is Lookup.HIT]
            link.counters["dropped_gone"] += len(batch) - len(keys)
            keys = self._lacking(link, keys, now)
            if keys:
                self._send(link, Job(Course.DOWN, keys, self._pool.hold(keys), self._pool.generation), now)

    def _write_back(self, now: float) -> None:
        """Make room ahead of need, and write down what leaves."""
        links = [link for link in self._links if self._may_take(link, now)]
        if not links:
            return
        probing = any(not link.breakers[Course.DOWN].closed for link in links)
        room = 1 if probing else min(self._config.step_blocks, *(self._room(link) for link in links))
        leaving = dict(self._pool.withdraw(min(self._clean - self._pool.free - len(self._leaving), room)))
        for link in links:
            keys = self._lacking(link, list(leaving), now)
            for start in range(0, len(keys), self._config.job_blocks):
                batch = keys[start : start + self._config.job_blocks]
                job = Job(Course.DOWN, batch, [leaving[key] for key in batch], self._pool.generation, gone=True)
                self._ledger.add(job.slots)
                self._leaving.update(job.slots)
                self._send(link, job, now)
        self._pool.reclaim(slot for slot in leaving.values() if slot not in self._ledger)

    def _may_take(self, link: Link, now: float) -> bool:
        breaker = link.breakers[Course.DOWN]
        return self._room(link) > 0 and (breaker.closed or breaker.due(now))

    def _room(self, link: Link) -> int:
        return self._per_link[link.index] - link.busy[Course.DOWN]

    def _lacking(self, link: Link, keys: Sequence[Key], now: float) -> list[Key]:
        if not keys:
            return []
        lacking = [key for key, at in zip(keys, link.look(keys, now), strict=True) if at is not Presence.HIT]
        link.counters["present"] += len(keys) - len(lacking)
        return lacking

    def _send(self, link: Link, job: Job, now: float) -> None:
        breaker = link.breakers[Course.DOWN]
        if not breaker.closed:
            breaker.probe()
            link.counters["probes"] += 1
        self._flying[link.index].update(job.keys)
        refusal = link.submit(job, self._view, now)
        if refusal is not None:
            self.land(link, job, refusal)

    # Answers.

    def land(self, link: Link, job: Job, result: JobResult) -> None:
        """A store was answered, however it ended."""
        for status in result.statuses:
            link.counters[f"store_{status.value}"] += 1
        self._flying[link.index].difference_update(job.keys)
        if not job.gone:
            self._pool.release(job.keys)
            return
        self._ledger.let_go(job.slots)
        self._leaving = set(filter(self._ledger.__contains__, self._leaving))

    def reset(self) -> None:
        """Everything in host memory is being dropped."""
        for queue in self._queues:
            queue.clear()

    @property
    def pending(self) -> bool:
        """Whether blocks wait to go down."""
        return any(self._queues)

    def queued(self, link: Link) -> int:
        """Blocks that wait to go down to this tier."""
        return len(self._queues[link.index])
