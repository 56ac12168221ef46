"""Leaves by age, and what is seen of uses: the compiled ones against naive ones."""

from copy import deepcopy

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aged_models import NaiveAges, NaiveUses
from kvloft._table import Ages, Uses
from kvloft.policies.ages import AgedSegment

CLASSES, EDGES, STAGES = 3, (1, 2, 4, 8, 12, 20), (2, 5)
_SEGMENT = st.integers(0, 11)
_KIND = st.integers(0, CLASSES - 1)


class AgedMachine(RuleBasedStateMachine):
    """Segments are used, changed, evicted and taken as a policy might, and told of too late, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.ages, self.naive = Ages(CLASSES, EDGES, STAGES), NaiveAges(CLASSES, EDGES, STAGES)
        self.uses, self.seen = Uses(CLASSES, EDGES), NaiveUses(CLASSES, EDGES)
        self.segments = [AgedSegment(number, tuple(range(number % 3 + 1)), None) for number in range(12)]

    @rule(requests=st.integers(1, 7))
    def tick(self, requests: int) -> None:
        for _ in range(requests):
            self.ages.tick()
            self.naive.clock += 1

    @rule(at=_SEGMENT, kind=_KIND, put=st.booleans(), reused=st.booleans())
    def use(self, at: int, kind: int, put: bool, reused: bool) -> None:
        segment = self.segments[at]
        bin = self.ages.bin(segment)
        assert bin == self.naive.bin(segment)
        for uses in (self.uses, self.seen):
            uses.end(segment, bin)
            if reused:
                uses.reuse(segment.kind, bin, segment.size)
        segment.last, segment.kind = self.ages.clock, kind
        for uses in (self.seen, self.uses):
            uses.begin(segment)
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

    @rule(times=st.integers(1, 4), back=st.booleans(), oldest=st.booleans())
    def take(self, times: int, back: bool, oldest: bool) -> None:
        for _ in range(times):
            taken = self.ages.take_oldest() if oldest else self.ages.take()
            assert taken is (self.naive.take_oldest() if oldest else self.naive.take())
            if back and taken:
                self.put(taken.number)

    @rule(seed=st.integers(0, 99))
    def rank(self, seed: int) -> None:
        index = np.random.default_rng(seed).integers(0, 5, (CLASSES, len(EDGES) + 1)) / 4
        self.ages.rank(index)
        self.naive.rank(index)

    @rule()
    def look(self) -> None:
        self.uses.look(self.ages.clock)
        self.seen.look(self.ages.clock)

    @rule()
    def count(self) -> None:
        counts = np.frombuffer(self.uses.take(), np.int64).reshape(self.seen.counts.shape)
        assert (counts == self.seen.take()).all()
        assert not any(self.uses.take())

    @rule()
    def go_on_with_copies(self) -> None:
        copies = self.ages, self.uses, self.naive, self.segments
        self.ages, self.uses, self.naive, self.segments = deepcopy(copies)
        self.naive.placed = {segment.number: self.naive.placed[segment.number] for segment in self.naive.leaves()}
        for segment in copies[3]:
            segment.keys = ()

    @invariant()
    def the_leaves_are_those(self) -> None:
        numbers = [segment.number for segment in self.ages.leaves()]
        assert sorted(numbers) == sorted(segment.number for segment in self.naive.leaves())
        assert all(segment is self.segments[segment.number] for segment in self.ages.leaves())


TestAged = AgedMachine.TestCase
TestAged.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
