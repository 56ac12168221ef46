"""Leaves by age, what is seen of uses, ghosts, and what LRU would have: the compiled ones against naive ones."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aged_models import NaiveAges, NaiveGhosts, NaiveShadow, NaiveUses
from kvloft._table import Ages, Ghosts, ShadowLRU, Uses
from kvloft.policies.ages import AgedSegment

CLASSES, EDGES, STAGES = 3, (1, 2, 4, 8, 12, 20), (2, 5)
_SEGMENT = st.integers(0, 11)
_KIND = st.integers(0, CLASSES - 1)
_GHOST = st.integers(0, 5)
_SHADOWED = st.integers(0, 6)
_KEYS = st.lists(st.integers(0, 7), max_size=4)


class AgedMachine(RuleBasedStateMachine):
    """Segments are used, changed, evicted and taken as a policy might, and told of too late, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.ages, self.naive = Ages(CLASSES, EDGES, STAGES), NaiveAges(CLASSES, EDGES, STAGES)
        self.uses, self.seen = Uses(self.ages), NaiveUses(self.naive)
        self.segments = [AgedSegment(number, tuple(range(number % 3 + 1)), None) for number in range(12)]

    @rule(requests=st.integers(1, 7))
    def tick(self, requests: int) -> None:
        for _ in range(requests):
            self.ages.tick()
            self.naive.clock += 1

    @rule(
        path=st.lists(_SEGMENT, max_size=4), stored=st.sets(st.integers(0, 2)), kinds=st.lists(_KIND, min_size=1, max_size=3)
    )
    def use(self, path: list[int], stored: set[int], kinds: list[int]) -> None:
        hits = asked = 0
        twins = deepcopy(self.segments)
        for at in path:
            twin = twins[at]
            assert self.ages.bin(twin) == self.naive.bin(twin)
            read = twin.keys[0] not in stored if twin.keys else twin.stamp != 0
            self.seen.end(twin, read)
            if read:
                hits += len(twin.keys)
                if twin.parent and not twin.reads:
                    twin.parent.branches_reused += 1
                twin.reads += 1
                twin.kind = kinds[min(twin.reads, len(kinds) - 1)]
            asked += len(twin.keys)
            twin.owner, twin.last = None, self.naive.clock
            self.seen.begin(twin)
        assert self.uses.again([self.segments[at] for at in path], stored, tuple(kinds)) == (hits, asked)
        for segment, twin in zip(self.segments, twins, strict=True):
            for name in ("owner", "reads", "kind", "last", "branches_reused"):
                assert getattr(segment, name) == getattr(twin, name)
            if segment.number in path:
                self.naive.put(segment)

    @rule(at=_SEGMENT, kind=_KIND, stamp=st.integers(0, 1), parent=_SEGMENT)
    def begin(self, at: int, kind: int, stamp: int, parent: int) -> None:
        self.end(at)
        segment = self.segments[at]
        segment.kind, segment.stamp, segment.owner = kind, stamp, ("request",)
        segment.parent = self.segments[parent] if parent < at else None
        self.uses.begin(segment)
        self.seen.begin(segment)

    @rule(at=_SEGMENT)
    def end(self, at: int) -> None:
        self.uses.end(self.segments[at])
        self.seen.end(self.segments[at], False)

    @rule(at=_SEGMENT, bin=st.integers(0, len(EDGES)), blocks=st.integers(0, 3))
    def reuse(self, at: int, bin: int, blocks: int) -> None:
        self.uses.reuse(self.segments[at].kind, bin, blocks)
        self.seen.reuse(self.segments[at].kind, bin, blocks)

    @rule(at=_SEGMENT, kind=_KIND, put=st.booleans())
    def return_with_an_age(self, at: int, kind: int, put: bool) -> None:
        segment = self.segments[at]
        segment.last, segment.kind = self.ages.clock // 2, kind
        if put:
            self.put(at)

    @rule(at=_SEGMENT, kind=_KIND, live=st.integers(0, 1), blocks=st.integers(0, 2), put=st.booleans())
    def change(self, at: int, kind: int, live: int, blocks: int, put: bool) -> None:
        segment = self.segments[at]
        segment.kind, segment.live, segment.keys = kind, live, tuple(range(blocks))
        for uses in (self.uses, self.seen):
            uses.change(segment)
        if put:
            self.put(at)

    @rule(at=_SEGMENT)
    def put(self, at: int) -> None:
        self.ages.put(self.segments[at])
        self.naive.put(self.segments[at])

    @rule(times=st.integers(1, 4), back=st.booleans(), oldest=st.booleans(), age=st.none() | st.integers(-1, 70))
    def take(self, times: int, back: bool, oldest: bool, age: int | None) -> None:
        for _ in range(times):
            if age is not None:
                taken = self.ages.take_before(self.ages.clock - age)
                assert taken is self.naive.take_before(self.naive.clock - age)
            else:
                taken = self.ages.take_oldest() if oldest else self.ages.take()
                assert taken is (self.naive.take_oldest() if oldest else self.naive.take())
            if back and taken:
                self.put(taken.number)

    @rule(seed=st.integers(0, 99))
    def rank(self, seed: int) -> None:
        index = np.random.default_rng(seed).integers(0, 5, (CLASSES, len(EDGES) + 1)) / 4
        self.ages.rank(index)
        self.naive.rank(index)

    @rule(at=_SEGMENT)
    def index(self, at: int) -> None:
        segment = self.segments[at]
        assert self.ages.index(segment) == self.naive.raw[segment.kind, self.naive.bin(segment)]

    @rule()
    def look(self) -> None:
        self.uses.look()
        self.seen.look()

    @rule()
    def count(self) -> None:
        counts = np.frombuffer(self.uses.take(), np.int64).reshape(self.seen.counts.shape)
        assert (counts == self.seen.take()).all()
        assert not any(self.uses.take())

    @rule()
    def go_on_with_copies(self) -> None:
        copies = self.ages, self.uses, self.seen, self.segments
        self.ages, self.uses, self.seen, self.segments = deepcopy(copies)
        self.naive = self.seen.ages
        self.naive.placed = {segment.number: self.naive.placed[segment.number] for segment in self.naive.leaves()}
        for segment in copies[3]:
            segment.keys = ()

    @invariant()
    def the_leaves_are_those(self) -> None:
        numbers = [segment.number for segment in self.ages.leaves()]
        assert sorted(numbers) == sorted(segment.number for segment in self.naive.leaves())
        assert all(segment is self.segments[segment.number] for segment in self.ages.leaves())


class GhostMachine(RuleBasedStateMachine):
    """Blocks that several segments may lose, so that hashes are claimed by the one that came last."""

    def __init__(self) -> None:
        super().__init__()
        self.ghosts, self.naive = Ghosts(), NaiveGhosts()
        self.segments = [AgedSegment(number, (), None) for number in range(6)]

    @rule(at=_GHOST, keys=_KEYS)
    def evict(self, at: int, keys: list[int]) -> None:
        self.ghosts.evict(self.segments[at], keys[::-1])
        self.naive.evict(at, keys)

    @rule(at=_GHOST, keys=_KEYS)
    def extend(self, at: int, keys: list[int]) -> None:
        self.ghosts.extend(self.segments[at], keys)
        self.naive.extend(at, keys)

    @rule(at=_GHOST, n=st.integers(0, 5))
    def drop(self, at: int, n: int) -> None:
        self.ghosts.drop(self.segments[at], n)
        self.naive.drop(at, n)

    @rule(at=_GHOST, n=st.integers(1, 5), head=_GHOST)
    def part(self, at: int, n: int, head: int) -> None:
        segment, other = self.segments[at], self.segments[head]
        if n > segment.evicted or other.evicted:
            with pytest.raises(ValueError, match="evicted blocks, to a segment with"):
                self.ghosts.part(segment, n, other)
        else:
            self.ghosts.part(segment, n, other)
            self.naive.part(at, n, head)

    @rule(keys=_KEYS.filter(len))
    def find(self, keys: list[int]) -> None:
        found = self.ghosts.find(keys)
        assert (found and (found[0].number, found[1])) == self.naive.find(keys)

    @rule()
    def go_on_with_copies(self) -> None:
        copies = deepcopy((self.ghosts, self.segments))
        for segment in self.segments:
            self.ghosts.drop(segment, segment.evicted + 1)
        assert self.ghosts.oldest() is None and self.ghosts.blocks == 0
        self.ghosts, self.segments = copies

    @invariant()
    def they_are_lists(self) -> None:
        assert [segment.number for segment in self.ghosts.segments()] == list(self.naive.hashes)
        assert self.ghosts.blocks == sum(map(len, self.naive.hashes.values()))
        assert [segment.size for segment in self.segments] == [len(self.naive.hashes.get(number, ())) for number in range(6)]
        assert all(segment is self.segments[segment.number] for segment in self.ghosts.segments())
        for key in range(8):
            found = self.ghosts.find([key])
            assert (found and (found[0].number, found[1])) == self.naive.find([key])


class ShadowMachine(RuleBasedStateMachine):
    """Segments are used, lose their tails, get them back, and are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.ghosts, self.shadow = Ghosts(), ShadowLRU(20)
        self.segments = [AgedSegment(number, tuple(range(number + 1)), None) for number in range(7)]
        self.naive = NaiveShadow(20, self.segments)

    @rule(path=st.lists(_SHADOWED, unique=True, max_size=4))
    def use(self, path: list[int]) -> None:
        chain = [self.segments[at] for at in path]
        before = [segment.stamp for segment in chain]
        had = self.shadow.use(chain)
        assert all(segment.stamp == self.naive.latest + 1 for segment in chain)
        for segment, stamp in zip(chain, before, strict=True):
            segment.stamp = stamp
        assert self.naive.use(chain) == had

    @rule(at=_SHADOWED, n=st.integers(1, 4))
    def lose(self, at: int, n: int) -> None:
        segment = self.segments[at]
        lost = segment.keys[-n:]
        self.shadow.lose(segment, len(lost))
        self.naive.lose(segment, len(lost))
        self.ghosts.evict(segment, lost[::-1])
        segment.keys = segment.keys[: len(segment.keys) - len(lost)]

    @rule(at=_SHADOWED, n=st.integers(1, 4))
    def regain(self, at: int, n: int) -> None:
        segment = self.segments[at]
        n = min(n, segment.evicted)
        apart = self.naive.apart
        self.shadow.regain(segment, n)
        self.ghosts.drop(segment, n)
        segment.keys += (0,) * n
        self.naive.missed += apart - self.naive.apart

    @rule(at=_SHADOWED)
    def forget(self, at: int) -> None:
        segment = self.segments[at]
        self.shadow.forget(segment, segment.evicted, 0)
        self.naive.forget(segment, segment.evicted)
        self.ghosts.drop(segment, segment.evicted)

    @rule()
    def go_on_with_a_copy(self) -> None:
        copy = deepcopy(self.shadow)
        self.shadow.lose(self.segments[0], 3)
        self.shadow.use(self.segments[:0])
        self.shadow = copy

    @invariant()
    def they_are_as_far_apart(self) -> None:
        assert self.shadow.apart == self.naive.apart
        assert self.shadow.oldest == min(self.naive.has, default=1)
        assert (self.shadow.missed, self.shadow.spared) == (self.naive.missed, self.naive.spared)
        for segment in self.segments:
            assert self.shadow.lacking(segment, 2) == self.naive.lacking(segment, 2)


TestAged = AgedMachine.TestCase
TestGhosts = GhostMachine.TestCase
TestShadow = ShadowMachine.TestCase
TestAged.settings = TestGhosts.settings = TestShadow.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None
)
