"""Drives two of vLLM's stock managers through the same requests, as its scheduler would, and compares every answer."""

import random
from collections.abc import Callable, Iterator, Sequence

from hypothesis import strategies as st
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

TOKENS = 16


def key_of(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), group)


class Asked:
    """One request, told to each manager through a context of its own."""

    def __init__(self, keys: list[OffloadKey], contexts: list[ReqContext]) -> None:
        self.keys = keys
        self.contexts = contexts
        self.next = 0
        self.stores: list[set[OffloadKey]] = []
        self.load: set[OffloadKey] = set()

    def __repr__(self) -> str:
        numbers = [int.from_bytes(key[:-4], "big") for key in self.keys]
        return f"{self.contexts[0].req_id}: {numbers} at {self.next}"


class SideBySide:
    """Two managers and what both have been asked. `check` is called after every step."""

    def __init__(self, capacity: int, managers: Sequence[CPUOffloadingManager], check: Callable[[], None]) -> None:
        self.capacity = capacity
        self.managers = managers
        self.check = check
        self.live: list[Asked] = []
        self.ended: list[Asked] = []
        self.names = 0
        self.evicted = 0

    def start(self, numbers: Sequence[int], positions: bool = True) -> Asked:
        keys = [key_of(number) for number in numbers]
        contexts = [ReqContext(f"request-{self.names}") for _ in self.managers]
        self.names += 1
        for manager, context in zip(self.managers, contexts, strict=True):
            for at, key in enumerate(keys if positions else (), 1):
                context.set_offload_key_position(key, at * TOKENS)
            manager.on_new_request(context)
        asked = Asked(keys, contexts)
        self.live.append(asked)
        self.check()
        return asked

    def lookup(self, key: OffloadKey) -> str:
        first, second = (manager.lookup(key, ReqContext("")) for manager in self.managers)
        assert first is second, key
        return first.name

    def load(self, asked: Asked) -> None:
        """Load what there is of its prefix, as the scheduler does before the first store."""
        hits = 0
        while hits < len(asked.keys) and self.lookup(asked.keys[hits]) == "HIT":
            hits += 1
        asked.next = hits
        if not hits:
            return
        specs = [
            manager.prepare_load(asked.keys[:hits], context)
            for manager, context in zip(self.managers, asked.contexts, strict=True)
        ]
        assert specs[0].block_ids.tolist() == specs[1].block_ids.tolist()
        asked.load = set(asked.keys[:hits])
        self.check()

    def fitting(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """As many of an offer as cannot be refused."""
        requests = self.live + self.ended
        busy = {key for asked in requests for job in (*asked.stores, asked.load) for key in job}
        room = self.capacity - len(busy | {key for key in keys if self.lookup(key) != "MISS"})
        for end, key in enumerate(keys):
            room -= self.lookup(key) == "MISS"
            if room < 0:
                return keys[:end]
        return keys

    def store(self, asked: Asked, n: int) -> None:
        """Offer the next n blocks; both managers must do the same."""
        offer = self.fitting(asked.keys[asked.next : asked.next + n])
        outputs = [
            manager.prepare_store(offer, context) for manager, context in zip(self.managers, asked.contexts, strict=True)
        ]
        for output in outputs:
            assert output is not None, "an offer that fits was refused"
        first, second = outputs
        assert first.keys_to_store == second.keys_to_store
        assert first.evicted_keys == second.evicted_keys
        assert first.store_spec.block_ids.tolist() == second.store_spec.block_ids.tolist()
        self.evicted += len(first.evicted_keys)
        asked.next += len(offer)
        if first.keys_to_store:
            asked.stores.append(set(first.keys_to_store))
        self.check()

    def complete_load(self, asked: Asked) -> None:
        for manager, context in zip(self.managers, asked.contexts, strict=True):
            manager.complete_load(set(asked.load), context)
        asked.load = set()
        self.check()

    def complete_store(self, asked: Asked, number: int) -> None:
        done = asked.stores.pop(number)
        for manager, context in zip(self.managers, asked.contexts, strict=True):
            manager.complete_store(set(done), context)
        self.check()

    def finish(self, asked: Asked) -> None:
        for manager, context in zip(self.managers, asked.contexts, strict=True):
            manager.on_request_finished(context)
        self.live.remove(asked)
        self.ended.append(asked)
        self.check()

    def step(self, choose: Callable[[Sequence], object], prompts: Callable[[], Sequence[int]]) -> None:
        """One random step. `choose` picks one of several, `prompts` makes a request's blocks."""
        choices = [("start", None)] * (len(self.live) < 4)
        choices += [("store", asked) for asked in self.live if not asked.load and asked.next < len(asked.keys)]
        choices += [("finish", asked) for asked in self.live if not asked.load and asked.next >= len(asked.keys)]
        requests = self.live + self.ended
        choices += [("loaded", asked) for asked in requests if asked.load]
        choices += [("stored", asked) for asked in requests if asked.stores]
        match choose(choices):
            case ("start", _):
                self.load(self.start(prompts(), positions=choose((True, True, False))))
            case ("store", asked):
                self.store(asked, choose((1, 2, 3, 8)))
            case ("finish", asked):
                self.finish(asked)
            case ("loaded", asked):
                self.complete_load(asked)
            case ("stored", asked):
                self.complete_store(asked, choose(range(len(asked.stores))))
        self.ended = [asked for asked in self.ended if asked.stores or asked.load]

    def end(self) -> None:
        """Let everything complete, then evict all: that shows the order in which both would let it go."""
        for asked in (*self.live, *self.ended):
            if asked.load:
                self.complete_load(asked)
            while asked.stores:
                self.complete_store(asked, 0)
        for asked in list(self.live):
            self.finish(asked)
        self.ended.clear()
        for number in range(self.capacity):
            self.serve([10_000 + number], 1)

    def serve(self, numbers: Sequence[int], batch: int) -> None:
        """One request from start to end, alone."""
        asked = self.start(numbers)
        self.load(asked)
        if asked.load:
            self.complete_load(asked)
        while asked.next < len(asked.keys):
            before = asked.next
            self.store(asked, batch)
            while asked.stores:
                self.complete_store(asked, 0)
            if asked.next == before:
                break
        self.finish(asked)
        self.ended.clear()


PROMPTS = st.builds(
    lambda head, cut, tail: [*range(head * 10, head * 10 + cut), *range(100 + tail * 10, 100 + tail * 10 + 3)],
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(0, 5),
)
"""Prompts that share heads, leave them at different depths, and come back with tails seen before."""


def conversations(seed: int, requests: int) -> Iterator[list[int]]:
    """A made-up trace: conversations that grow by turns, some with a shared system prompt, and scans that never return."""
    rng = random.Random(seed)
    fresh = iter(range(1_000, 10_000_000))
    take = lambda n: [next(fresh) for _ in range(n)]  # noqa: E731
    systems = [take(rng.randint(1, 6)) for _ in range(3)]
    open_ones: list[list[int]] = []
    for _ in range(requests):
        if rng.random() < 0.15:
            yield take(rng.randint(5, 40))
            continue
        if len(open_ones) < 12 or rng.random() < 0.1:
            open_ones.append([*rng.choice(systems), *take(rng.randint(1, 8))])
        turn = rng.choice(open_ones)
        yield list(turn)
        turn.extend(take(rng.randint(1, 5)))
        if len(open_ones) > 15:
            open_ones.pop(0)
