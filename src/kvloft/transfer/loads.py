"""Blocks on their way up: with room in host memory, waiting to be handed to their tier, or in its hands."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence

from kvloft.pool import BlockPool, StorePlan
from kvloft.request import Key, Request
from kvloft.tiers.base import Buffer, JobResult, Status
from kvloft.transfer.ledger import SlotLedger
from kvloft.transfer.limits import CascadeConfig, slots_each
from kvloft.transfer.link import Course, Job, Link
from kvloft.transfer.waiting import Load, Wait


class Loads:
    """All loads of a cascade. Each block is loaded once at a time, whoever waits for it."""

    def __init__(
        self,
        pool: BlockPool,
        links: Sequence[Link],
        view: Callable[[int], Buffer],
        config: CascadeConfig,
        ledger: SlotLedger,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._links = links
        self._view = view
        self._config = config
        self._per_link = slots_each(pool.capacity, config.load_share, len(links))
        self._loads: dict[Key, Load] = {}
        self._queues: list[deque[list[Load]]] = [deque() for _ in links]
        """Loads not yet submitted, in batches of one request each."""
        self.set_aside = 0
        """Slots in the hands of loads that were given up."""

    def __len__(self) -> int:
        """Blocks that have room and have not arrived."""
        return len(self._loads)

    def get(self, key: Key) -> Load | None:
        return self._loads.get(key)

    @property
    def queued(self) -> bool:
        """Whether loads wait to be submitted."""
        return any(self._queues)

    def ahead(self, link: Link) -> int:
        """Blocks that this tier has to load first."""
        return link.busy[Course.UP] + sum(map(len, self._queues[link.index]))

    def room(self, link: Link) -> int:
        """Slots that may still be put into this tier's hands."""
        return self._per_link[link.index] - link.busy[Course.UP]

    # Beginning.

    def start(self, plan: StorePlan, sources: Mapping[Key, int], wait: Wait) -> None:
        """Load blocks for which there is room now.

        Args:
            plan: the room.
            sources: the tier of each block, by its index.
            wait: the request that wants them.
        """
        batches: dict[int, list[Load]] = {}
        for key, slot in zip(plan.keys, plan.slots, strict=True):
            load = Load(key, self._links[sources[key]], slot, wait.request, {wait.request.id: wait})
            self._loads[key] = wait.loads[key] = load
            batches.setdefault(sources[key], []).append(load)
        size = self._config.job_blocks
        for index, loads in batches.items():
            self._queues[index].extend(loads[start : start + size] for start in range(0, len(loads), size))

    def probe(self, link: Link, keys: Sequence[Key], tenant: str, now: float) -> None:
        """Load blocks that nobody waits for, at once."""
        nobody = Request(("probe", link.name), tenant)
        plan = self._pool.prepare_store(keys, nobody, fetch=True) if keys else None
        if plan is None:
            return
        self._pool.finish(nobody)
        if not link.breakers[Course.UP].closed:
            link.breakers[Course.UP].probe()
        link.counters["probes"] += 1
        loads = [Load(key, link, slot, nobody, probe=True) for key, slot in zip(plan.keys, plan.slots, strict=True)]
        self._loads.update((load.key, load) for load in loads)
        self._send(link, loads, now)

    def submit(self, link: Link, now: float) -> None:
        """Hand loads to a tier, as far as it may have slots. One that is left alone gets none: they have failed."""
        queue, breaker = self._queues[link.index], link.breakers[Course.UP]
        quota = min(self._config.step_blocks, self.room(link))
        while queue and breaker.closed and quota > 0:
            batch = self._current(queue.popleft())
            if len(batch) > quota:
                queue.appendleft(batch[quota:])
                del batch[quota:]
            quota -= len(batch)
            if batch:
                self._send(link, batch, now)
        if not breaker.closed:
            self._fail([load for batch in queue for load in self._current(batch)])
            queue.clear()

    # Ending.

    def land(self, link: Link, job: Job, result: JobResult) -> list[Load]:
        """A job was answered; what has arrived is ready now, and is returned."""
        if job.gone:
            self._ledger.let_go(job.slots)
            self.set_aside -= len(job.slots)
            return []
        landed: list[Load] = []
        lost: list[Load] = []
        for key, status in zip(job.keys, result.statuses, strict=True):
            link.counters[f"load_{status.value}"] += 1
            (landed if status is Status.OK else lost).append(self._loads[key])
        self._fail(lost)
        if landed:
            self._pool.complete_store([load.key for load in landed], landed[0].owner, generation=job.generation)
        for load in landed:
            del self._loads[load.key]
            for wait in load.waits.values():
                del wait.loads[load.key]
                wait.sources[load.key] = link.name
        return landed

    def give_up(self, job: Job) -> None:
        """A job is overdue: its blocks have failed, and its slots are nobody's until it is answered."""
        assert job.request is not None
        self._pool.quarantine(job.keys, job.request)
        self._ledger.add(job.slots)
        self.set_aside += len(job.slots)
        job.gone = True
        self._unhook([self._loads.pop(key) for key in job.keys])

    def desert(self, wait: Wait) -> None:
        """A request waits no more; what was to be loaded for it alone, and has not been submitted, is not."""
        deserted = []
        for load in wait.loads.values():
            del load.waits[wait.request.id]
            if not load.waits and not load.submitted:
                deserted.append(load)
        wait.loads.clear()
        self._drop(deserted)

    def reset(self) -> None:
        """Everything in host memory is being dropped."""
        self.set_aside += sum(load.submitted for load in self._loads.values())
        self._loads.clear()
        for queue in self._queues:
            queue.clear()

    # Steps.

    def _current(self, batch: Sequence[Load]) -> list[Load]:
        """Those that have not been deserted."""
        return [load for load in batch if self._loads.get(load.key) is load]

    def _send(self, link: Link, loads: Sequence[Load], now: float) -> None:
        for load in loads:
            load.submitted = True
        keys, slots = [load.key for load in loads], [load.slot for load in loads]
        job = Job(Course.UP, keys, slots, self._pool.generation, loads[0].owner)
        refusal = link.submit(job, self._view, now)
        if refusal is not None:
            self.land(link, job, refusal)

    def _fail(self, loads: Sequence[Load]) -> None:
        self._unhook(loads)
        self._drop(loads)

    def _unhook(self, loads: Sequence[Load]) -> None:
        """These will not arrive; whoever waits may find them in another tier."""
        for load in loads:
            for wait in load.waits.values():
                del wait.loads[load.key]
                wait.failed.add((load.link.index, load.key))

    def _drop(self, loads: Sequence[Load]) -> None:
        owners: dict[Hashable, tuple[Request, list[Key]]] = {}
        for load in loads:
            del self._loads[load.key]
            owners.setdefault(load.owner.id, (load.owner, []))[1].append(load.key)
        for owner, keys in owners.values():
            self._pool.complete_store(keys, owner, success=False)
