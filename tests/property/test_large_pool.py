"""The pool's promises at a size that an engine has, checked by sampling: what the state machine proves for six blocks."""

import random

import pytest

from kvloft import BlockPool, EventKind, Lookup, Request

CAPACITY, LONGEST, CHAINS = 20_000, 3_000, 12


class Shadow:
    """What a naive pool would know: sets, and who is busy."""

    def __init__(self, pool: BlockPool, rng: random.Random) -> None:
        self.pool, self.rng = pool, rng
        self.slot: dict[tuple[int, int], int] = {}
        self.ready: set[tuple[int, int]] = set()
        self.pinned: list[tuple[tuple[int, int], ...]] = []

    def store(self, keys: list[tuple[int, int]], request: Request, chain: set[tuple[int, int]]) -> list[tuple[int, int]]:
        """Offer keys; returns what is being written."""
        new = [key for key in keys if key not in self.slot]
        kept = {*keys, *chain, *(key for held in self.pinned for key in held)}
        may_leave = len(self.ready - kept)
        room = CAPACITY - len(self.slot)
        plan = self.pool.prepare_store(keys, request)
        if len(new) > room + may_leave:
            assert plan is None
            return []
        assert plan is not None
        assert plan.keys == new
        assert len(plan.evicted) == len(set(plan.evicted)) == max(0, len(new) - room)
        assert self.ready.issuperset(plan.evicted) and kept.isdisjoint(plan.evicted)
        for key in plan.evicted:
            del self.slot[key]
        self.ready.difference_update(plan.evicted)
        assert set(plan.slots).isdisjoint(self.slot.values())
        self.slot.update(zip(plan.keys, plan.slots, strict=True))
        return plan.keys

    def check(self, keys: list[tuple[int, int]]) -> None:
        stats = self.pool.stats()
        assert stats.free + stats.writing + stats.ready == CAPACITY
        assert (stats.ready, stats.ready + stats.writing) == (len(self.ready), len(self.slot))
        assert stats.pinned == len({key for held in self.pinned for key in held})
        assert sum(n for name, n in stats.lists.items() if not name.startswith("ghost")) == len(self.slot)
        for key in self.rng.sample(keys, 200):
            expected = Lookup.HIT if key in self.ready else Lookup.PENDING if key in self.slot else Lookup.MISS
            assert self.pool.lookup(key) is expected


@pytest.mark.parametrize("policy", ["lru", "arc", "arc-vllm", "default"])
@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_blocks_a_call(policy: str, seed: int) -> None:
    rng = random.Random(f"{policy} {seed}")
    pool = BlockPool(CAPACITY, policy)
    shadow = Shadow(pool, rng)
    every = [(chain, at) for chain in range(CHAINS) for at in range(LONGEST)]
    indexed: set[object] = set()
    readers: list[tuple[Request, tuple[tuple[int, int], ...]]] = []
    for number in range(40):
        request, which = Request(number), rng.randrange(CHAINS)
        chain = [(which, at) for at in range(rng.randint(1, LONGEST))]
        hits = pool.match_prefix(chain)
        assert hits == next((at for at, key in enumerate(chain) if key not in shadow.ready), len(chain))
        loaded = tuple(chain[:hits])
        plan = pool.prepare_load(loaded, request)
        assert list(plan.slots) == [shadow.slot[key] for key in loaded]
        shadow.pinned.append(loaded)
        readers.append((request, loaded))
        named = set(loaded)
        for start in range(hits, len(chain), 1000):
            keys = chain[start : start + 1000]
            written = shadow.store(keys, request, named)
            if written:
                named.update(keys)
                assert set(pool.complete_store(set(written), request)) == set(written)
                shadow.ready.update(written)
        if len(readers) > 3:
            reader, held = readers.pop(rng.randrange(len(readers)))
            pool.complete_load(set(held), reader)
            shadow.pinned.remove(held)
            pool.finish(reader)
        for event in pool.take_events():
            if event.kind is EventKind.STORED:
                assert indexed.isdisjoint(event.keys)
                indexed.update(event.keys)
            else:
                assert indexed.issuperset(event.keys)
                indexed.difference_update(event.keys)
        assert indexed == shadow.ready
        shadow.check(every)
