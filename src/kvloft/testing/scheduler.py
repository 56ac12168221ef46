"""A scheduler at random: what vLLM's does with an offload manager, and a naive model of what should come of it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

TOKENS = 16
"""Tokens a block, for the positions that requests name."""


def make_key(number: int, group: int = 0) -> bytes:
    """An offload key as vLLM packs it: the chained hash, then the KV group in four bytes."""
    return number.to_bytes(32, "big") + group.to_bytes(4, "big")


def make_keys(numbers: Iterable[int], group: int = 0) -> list[bytes]:
    """Keys of one chain."""
    return [make_key(number, group) for number in numbers]


def look(manager: Any, context: Any, keys: Iterable[bytes]) -> list[str]:
    """The names of what `lookup` answers."""
    return [manager.lookup(key, context).name for key in keys]


def prefix(manager: Any, context: Any, keys: Sequence[bytes]) -> int:
    """Length of the leading run of ready blocks."""
    return next((at for at, key in enumerate(keys) if manager.lookup(key, context).name != "HIT"), len(keys))


class Asked:
    """A request of the model."""

    def __init__(self, context: Any, keys: list[bytes]) -> None:
        self.context = context
        self.keys = keys
        self.next = 0
        self.named: set[bytes] = set()
        self.stores: list[dict[bytes, int]] = []
        self.load: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"{self.context.req_id}: {[int.from_bytes(key[:-4], 'big') for key in self.keys]} at {self.next}"


class World:
    """A manager, the memory it manages, and what a few plain dicts say should be there."""

    def __init__(self, laws: Any, draw: Callable[[Any], Any]) -> None:
        self.laws = laws
        self.draw = draw
        self.capacity = laws.capacity
        self.manager = laws.make_manager(laws.capacity)
        self.memory: dict[int, bytes] = {}
        self.ready: dict[bytes, int] = {}
        self.writing: dict[bytes, int] = {}
        self.pins: Counter[bytes] = Counter()
        self.live: list[Asked] = []
        self.ended: list[Asked] = []
        self.told: set[bytes] = set()
        self.count = 0
        self.all_keys = [*make_keys(range(20)), *make_keys(range(20), group=1)]

    def step(self) -> None:
        requests = [*self.live, *self.ended]
        choices: list[tuple[Callable[..., None], Asked | None]] = [(self.start, None)] * (len(self.live) < 4)
        choices += [(self.store, asked) for asked in self.live if not asked.load and asked.next < len(asked.keys)]
        choices += [(self.finish, asked) for asked in self.live if not asked.load]
        choices += [(self.land, asked) for asked in requests if asked.stores]
        choices += [(self.unload, asked) for asked in requests if asked.load]
        choices += [(self.reset, None)] * self.draw(st.booleans())
        act, asked = self.draw(st.sampled_from(choices))
        act(asked) if asked else act()
        self.check()

    def start(self) -> None:
        group = self.draw(st.integers(0, 1))
        head, tail = self.draw(st.integers(0, 6)), self.draw(st.integers(6, 19))
        keys = make_keys([*range(head), *range(tail, min(tail + 4, 20))], group)
        self.count += 1
        asked = Asked(self.laws.request(self.manager, f"request {self.count}", keys), keys)
        self.live.append(asked)
        hits = prefix(self.manager, asked.context, keys)
        asked.next = hits
        if hits:
            slots = self.manager.prepare_load(keys[:hits], asked.context).block_ids
            asked.load = dict(zip(keys[:hits], map(int, slots), strict=True))
            asked.named.update(asked.load)
            self.pins.update(asked.load.keys())

    def unload(self, asked: Asked) -> None:
        """The bytes that it reads are the ones that were stored."""
        assert all(self.memory[slot] == key for key, slot in asked.load.items())
        self.manager.complete_load(set(asked.load), asked.context)
        self.pins.subtract(asked.load.keys())
        self.pins += Counter()
        asked.load = {}

    def store(self, asked: Asked) -> None:
        offer = asked.keys[asked.next : asked.next + self.draw(st.integers(1, 6))]
        resident = {**self.ready, **self.writing}
        new = [key for key in offer if key not in resident]
        kept = self.writing.keys() | self.pins.keys() | {key for key in (*offer, *asked.named) if key in resident}
        output = self.manager.prepare_store(offer, asked.context)
        if output is None:
            assert len(new) > self.capacity - len(kept), "a store that fits was refused"
            return
        assert output.keys_to_store == new
        assert len(output.evicted_keys) == len(set(output.evicted_keys))
        assert not kept & set(output.evicted_keys)
        for key in output.evicted_keys:
            del self.ready[key]
        slots = list(map(int, output.store_spec.block_ids))
        assert len(slots) == len(new)
        asked.next += len(offer)
        asked.named.update(key for key in offer if key in new or key in self.ready)
        if new:
            asked.stores.append(dict(zip(new, slots, strict=True)))
            self.writing.update(asked.stores[-1])
        used = [*self.ready.values(), *self.writing.values()]
        assert len(set(used)) == len(used) and set(used) <= set(range(self.capacity))

    def land(self, asked: Asked) -> None:
        store = asked.stores.pop(self.draw(st.integers(0, len(asked.stores) - 1)))
        success = self.draw(st.integers(0, 4)) > 0
        for key, slot in store.items():
            del self.writing[key]
            self.memory[slot] = key if success else b"torn"
        if success:
            self.ready.update(store)
        else:
            asked.named.difference_update(store)
        for _ in range(self.draw(st.integers(1, 2))):
            self.manager.complete_store(set(store), asked.context, success=success)

    def finish(self, asked: Asked) -> None:
        self.manager.on_request_finished(asked.context)
        self.live.remove(asked)
        self.ended.append(asked)

    def reset(self) -> None:
        self.manager.reset_cache()
        self.ready.clear()
        self.writing.clear()
        self.pins.clear()
        for asked in (*self.live, *self.ended):
            asked.stores.clear()
            asked.load = {}
            asked.named.clear()
            asked.next = 0

    def check(self) -> None:
        asker = self.live[0].context if self.live else self.laws.make_context("asker")
        for key in self.all_keys:
            expected = "HIT" if key in self.ready else "HIT_PENDING" if key in self.writing else "MISS"
            assert self.manager.lookup(key, asker).name == expected
        for event in self.manager.take_events():
            if not getattr(event, "metadata_only", False):
                self._hear(event.keys, event.removed)
        assert self.told == self.ready.keys(), "events tell another story"
        self.ended = [asked for asked in self.ended if asked.stores or asked.load]

    def _hear(self, keys: Collection[bytes], removed: bool) -> None:
        if removed:
            assert self.told.issuperset(keys)
            self.told.difference_update(keys)
        else:
            self.told.update(keys)
