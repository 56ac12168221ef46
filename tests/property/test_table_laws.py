"""The compiled tables against plain lists and dicts, with keys of all kinds, and with as many collisions as can be."""

import random
from collections import OrderedDict
from copy import deepcopy
from itertools import groupby
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvloft._table import Homes, Index, Queues


class Colliding:
    """All of one hash; equal if of one number, so that equal keys need not be identical."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and self.number == other.number

    def __repr__(self) -> str:
        return f"Colliding({self.number})"


def key(number: int) -> object:
    """A key of some kind, made anew."""
    return (number, f"block {number}", b"%036d" % number, Colliding(number), (number, "part"))[number % 5]


KEYS = range(30)
_BATCH = st.lists(st.sampled_from(KEYS), max_size=12).map(lambda numbers: [key(number) for number in numbers])


def once(keys: list[object]) -> list[object]:
    return list(dict.fromkeys(keys))


class Gap:
    """Stands in a naive queue where a key was lifted."""

    def __init__(self, number: int) -> None:
        self.number = number


class QueuesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queues = Queues(0, 3)
        self.naive: list[OrderedDict[object, None]] = [OrderedDict() for _ in range(3)]

    @rule(keys=_BATCH, queue=st.integers(0, 2))
    def add(self, keys: list[object], queue: int) -> None:
        self.queues.add(keys, queue)
        self.naive[queue].update(dict.fromkeys(one for one in keys if not any(one in naive for naive in self.naive)))

    @rule(keys=_BATCH)
    def touch(self, keys: list[object]) -> None:
        keys = self.known(keys)
        self.queues.touch(keys)
        for one in keys:
            next(naive for naive in self.naive if one in naive).move_to_end(one)

    @rule(keys=_BATCH, queue=st.integers(0, 2))
    def move(self, keys: list[object], queue: int) -> None:
        keys = self.known(keys)
        self.queues.move(keys, queue)
        for one in keys:
            del next(naive for naive in self.naive if one in naive)[one]
            self.naive[queue][one] = None

    @rule(keys=_BATCH, queue=st.integers(0, 2))
    def lift(self, keys: list[object], queue: int) -> None:
        keys = self.known(keys)
        gaps = self.queues.lift(keys, queue)
        for one, gap in zip(keys, gaps, strict=True):
            self.replace(one, Gap(gap))
            self.naive[queue][one] = None

    @rule(keys=_BATCH, rng=st.randoms())
    def put_back(self, keys: list[object], rng: random.Random) -> None:
        gaps = self.gaps(rng)
        keys = once(self.known(keys))[: len(gaps)]
        gaps = gaps[: len(keys)]
        for few, wrong in ((keys, [*gaps, 0]), (keys[1:], gaps)) if keys else ():
            with pytest.raises(ValueError, match=r"is no gap|keys for .* gaps"):
                self.queues.put_back(few, wrong)
        self.queues.put_back(keys, gaps)
        for one, gap in zip(keys, gaps, strict=True):
            del next(naive for naive in self.naive if one in naive)[one]
            self.replace(self.gap(gap), one)

    @rule(rng=st.randoms())
    def close(self, rng: random.Random) -> None:
        gaps = self.gaps(rng)
        self.queues.close([*gaps, *gaps])
        for naive in self.naive:
            for one in [one for one in naive if isinstance(one, Gap) and one.number in gaps]:
                del naive[one]
        for gap in gaps:
            with pytest.raises(ValueError, match="is no gap"):
                self.queues.close([gap])

    @rule(keys=_BATCH)
    def remove(self, keys: list[object]) -> None:
        keys = self.known(keys)
        self.queues.remove(keys)
        for one in once(keys):
            del next(naive for naive in self.naive if one in naive)[one]

    @rule(keys=_BATCH, name=st.sampled_from(["touch", "remove", "move", "lift"]))
    def miss(self, keys: list[object], name: str) -> None:
        if self.queues.absent(keys):
            with pytest.raises(KeyError):
                getattr(self.queues, name)(keys, *([1] if name in ("move", "lift") else []))

    @rule(keep=_BATCH, n=st.integers(-1, 20), queue=st.integers(0, 2))
    def oldest(self, keep: list[object], n: int, queue: int) -> None:
        expected = [one for one in self.shown(queue) if one not in keep][: max(n, 0)]
        for kept in ({*keep}, dict.fromkeys(keep).keys(), tuple(keep)):
            assert self.queues.oldest(n, kept, queue) == expected

    @rule(keys=_BATCH)
    def ask(self, keys: list[object]) -> None:
        assert self.queues.present(keys) == self.known(keys)
        assert self.queues.absent(iter(keys)) == [one for one in keys if one not in self.queues]
        for queue, naive in enumerate(self.naive):
            assert self.queues.present(keys, queue) == [one for one in keys if one in naive]

    @rule(odds=st.integers(0, 9))
    def clear(self, odds: int) -> None:
        if not odds:
            self.queues.clear()
            for naive in self.naive:
                naive.clear()

    @rule()
    def go_on_with_a_copy(self) -> None:
        copy = deepcopy(self.queues)
        self.queues.clear()
        self.queues = copy

    @invariant()
    def they_are_lists(self) -> None:
        shown = [self.shown(queue) for queue in range(3)]
        assert [self.queues.keys(queue) for queue in range(3)] == shown
        assert [self.queues.size(queue) for queue in range(3)] == list(map(len, shown))
        assert [self.queues.newest(queue) for queue in range(3)] == [next(reversed(keys), None) for keys in shown]
        assert all(self.queues.queue(one) == queue for queue, keys in enumerate(shown) for one in keys)
        assert len(self.queues) == sum(map(len, shown))
        assert all((key(number) in self.queues) == any(key(number) in naive for naive in self.naive) for number in KEYS)

    def known(self, keys: list[object]) -> list[object]:
        return [one for one in keys if any(one in naive for naive in self.naive)]

    def shown(self, queue: int) -> list[object]:
        return [one for one in self.naive[queue] if not isinstance(one, Gap)]

    def gaps(self, rng: random.Random) -> list[int]:
        """Some of the gaps that are open."""
        gaps = [one.number for naive in self.naive for one in naive if isinstance(one, Gap)]
        return rng.sample(gaps, rng.randint(0, len(gaps)))

    def gap(self, number: int) -> Gap:
        return next(one for naive in self.naive for one in naive if isinstance(one, Gap) and one.number == number)

    def replace(self, one: object, other: object) -> None:
        """Put another one where one is."""
        for queue, naive in enumerate(self.naive):
            if one in naive:
                self.naive[queue] = OrderedDict.fromkeys(other if each == one else each for each in naive)


class IndexMachine(RuleBasedStateMachine):
    capacity = 10

    def __init__(self) -> None:
        super().__init__()
        self.index = Index(self.capacity)
        self.slot: dict[object, int] = {}
        self.writing: set[object] = set()
        self.readers: dict[object, int] = {}
        self.away: set[int] = set()

    @rule(keys=_BATCH)
    def take(self, keys: list[object]) -> None:
        room = self.capacity - len(self.slot) - len(self.away)
        if len(keys) > room or len(once(keys)) < len(keys) or any(one in self.slot for one in keys):
            with pytest.raises(ValueError, match=r"slots are wanted|is in already"):
                self.index.take(keys)
            keys = self.index.absent(once(keys))[:room]
        slots = self.index.take(keys)
        taken = {*self.slot.values(), *self.away}
        assert len(set(slots)) == len(keys) == len(slots) and taken.isdisjoint(slots)
        assert all(0 <= slot < self.capacity for slot in slots)
        self.slot.update(zip(keys, slots, strict=True))
        self.writing.update(keys)

    @rule(keys=_BATCH)
    def land(self, keys: list[object]) -> None:
        keys = self.index.present(keys)
        self.index.land(keys)
        self.writing.difference_update(keys)

    @rule(keys=_BATCH, away=st.booleans())
    def drop(self, keys: list[object], away: bool) -> None:
        keys = self.index.present(once(keys))
        slots = list(self.index.drop(keys, away=away))
        assert slots == [self.slot.pop(one) for one in keys]
        for one in keys:
            self.writing.discard(one)
            self.readers.pop(one, None)
        self.away.update(slots if away else ())

    @rule(slots=st.lists(st.integers(0, 9), max_size=6))
    def reclaim(self, slots: list[int]) -> None:
        self.index.reclaim(slots)
        self.away.difference_update(slots)

    @rule(keys=_BATCH)
    def pin(self, keys: list[object]) -> None:
        slots = self.index.pin(keys)
        if any(one not in self.slot or one in self.writing for one in keys):
            assert slots is None
            return
        assert slots is not None and list(slots) == [self.slot[one] for one in keys]
        for one in keys:
            self.readers[one] = self.readers.get(one, 0) + 1

    @rule(keys=_BATCH)
    def unpin(self, keys: list[object]) -> None:
        keys = self.index.present(keys)
        self.index.unpin(keys)
        for one in keys:
            self.readers[one] = self.readers.get(one, 0) - 1
            if self.readers[one] < 1:
                del self.readers[one]

    @rule(keys=_BATCH, name=st.sampled_from(["slots", "land", "drop", "unpin"]))
    def miss(self, keys: list[object], name: str) -> None:
        if self.index.absent(keys):
            with pytest.raises(KeyError):
                getattr(self.index, name)(keys)

    @rule(away=st.lists(st.integers(0, 9), max_size=3), odds=st.integers(0, 5))
    def clear(self, away: list[int], odds: int) -> None:
        if not odds:
            self.index.clear(away)
            self.away.update(away)
            for kept in (self.slot, self.writing, self.readers):
                kept.clear()

    @precondition(lambda self: self.slot)
    @rule()
    def go_on_with_a_copy(self) -> None:
        copy = deepcopy(self.index)
        self.index.clear()
        self.index = copy

    @rule(keys=_BATCH)
    def ask(self, keys: list[object]) -> None:
        answer = self.index.answers("miss", "pending", "hit")
        told = [answer(one, "the request") for one in keys]
        assert told == ["miss" if one not in self.slot else "pending" if one in self.writing else "hit" for one in keys]
        assert [self.index.state(one) for one in keys] == [("miss", "pending", "hit").index(one) for one in told]
        assert self.index.leading(keys) == next((at for at, state in enumerate(told) if state != "hit"), len(keys))
        assert self.index.present(keys) == [one for one in keys if one in self.slot]
        assert self.index.absent(keys) == [one for one in keys if one not in self.slot]
        assert self.index.ready(keys) == [one for one in keys if one in self.slot and one not in self.writing]

    @invariant()
    def it_is_a_dict(self) -> None:
        index = self.index
        assert (len(index), index.writing, index.away) == (len(self.slot), len(self.writing), len(self.away))
        assert index.free == self.capacity - len(self.slot) - len(self.away)
        assert index.pinned == len(self.readers)
        busy = index.busy()
        assert set(busy) == {*self.writing, *self.readers} and len(busy) == index.writing + index.pinned
        assert list(index) == sorted(self.slot, key=self.slot.__getitem__)
        assert list(index.slots([*self.slot])) == [*self.slot.values()]
        assert all((key(number) in index) == (key(number) in self.slot) for number in KEYS)


class HomesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.homes = Homes(4, touch=False)
        self.naive: dict[object, int] = {}

    @rule(keys=_BATCH, number=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2))
    def put(self, keys: list[object], number: int) -> None:
        self.homes.put(keys, number)
        self.naive.update(dict.fromkeys(keys, number))

    @rule(keys=_BATCH)
    def remove(self, keys: list[object]) -> None:
        keys = self.homes.present(keys)
        self.homes.remove(keys)
        for one in once(keys):
            del self.naive[one]

    @rule(keys=_BATCH)
    def ask(self, keys: list[object]) -> None:
        known = [one for one in keys if one in self.naive]
        assert self.homes.present(keys) == known
        assert self.homes.absent(keys) == [one for one in keys if one not in self.naive]
        runs = [(number, len(list(run))) for number, run in groupby(map(self.naive.__getitem__, known))]
        assert self.homes.runs(known) == runs
        if len(known) < len(keys):
            for call in (self.homes.runs, self.homes.remove):
                with pytest.raises(KeyError):
                    call(keys)

    @rule()
    def go_on_with_a_copy(self) -> None:
        copy = deepcopy(self.homes)
        self.homes.remove(self.homes)
        assert not self.homes
        self.homes = copy

    @invariant()
    def it_is_a_dict(self) -> None:
        assert set(self.homes) == set(self.naive) and len(self.homes) == len(self.naive)
        for number in KEYS:
            assert self.homes.get(key(number)) == self.naive.get(key(number))
            if key(number) in self.naive:
                assert self.homes[key(number)] == self.naive[key(number)]
            else:
                with pytest.raises(KeyError):
                    self.homes[key(number)]
            assert (key(number) in self.homes) == (key(number) in self.naive)


TestHomes = HomesMachine.TestCase
TestQueues = QueuesMachine.TestCase
TestIndex = IndexMachine.TestCase
for tests in (TestHomes, TestQueues, TestIndex):
    tests.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_queues_of_many_keys_are_lists_too() -> None:
    rng = random.Random(0)
    queues, naive = Queues(0), OrderedDict[Any, None]()
    names = [rng.randbytes(36) for _ in range(60_000)]
    for _ in range(60):
        start = rng.randrange(len(names))
        batch = names[start : start + rng.randrange(6000)]
        new, known = queues.absent(batch), queues.present(batch)
        assert new == [name for name in batch if name not in naive]
        queues.add(new)
        naive.update(dict.fromkeys(new))
        queues.touch(bytes(bytearray(name)) for name in known)
        for name in known:
            naive.move_to_end(name)
        kept, n = set(batch), rng.randrange(3000)
        gone = queues.oldest(n, kept)
        assert gone == [name for name in naive if name not in kept][:n]
        queues.remove(gone)
        for name in gone:
            del naive[name]
    assert len(queues) == len(naive) > 10_000
