"""`CountMinSketch`: what it counts, and when it forgets."""

import pytest

from kvloft.policies.sketch import CountMinSketch
from kvloft.policies.wtinylfu import WTinyLFU
from kvloft.request import Request


def test_uses_are_counted_up_to_a_limit() -> None:
    sketch = CountMinSketch(16)
    for _ in range(20):
        sketch.add(["often"])
    sketch.add(["once"])
    assert sketch.count(["often", "once", "never"]) == [sketch.LIMIT, 1, 0]


def test_a_full_sample_halves_all_counts() -> None:
    sketch = CountMinSketch(1)
    for _ in range(9):
        sketch.add(["a"])
    sketch.age()
    assert sketch.count(["a"]) == [9]
    sketch.add(["b"])
    sketch.age()
    assert sketch.count(["a", "b"]) == [4, 0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_stores_that_arrive_in_another_order_count_the_same(order: tuple[int, ...]) -> None:
    """The sample of ten times 16 uses is full with the first of them."""
    policy = WTinyLFU(16)
    for n in range(159):
        policy.commit([("old", n)], Request(n))
    for n in order:
        policy.commit([("late", n)], Request(("late", n)))
    assert policy._sketch.count([("late", n) for n in range(3)]) == [1, 1, 1]
