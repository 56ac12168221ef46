"""The LRU curve: a worked example, a public trace, ids that are no chains."""

import pytest

from kvloft.errors import TraceError
from kvloft.sim.curve import LRUCurve, lru_curve
from kvloft.traces.columns import columns
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace


def test_a_worked_example():
    """[1 2 3] lies at depths 3 4 5 when it comes back, under [1 4]; of that, block 1 has moved up to depth 1."""
    curve = lru_curve([TraceRequest([1, 2, 3]), TraceRequest([1, 4]), TraceRequest([1, 2, 3])])
    assert curve.hits([3, 4, 5]) == [1 + 2, 1 + 3, 1 + 3]
    assert (curve.blocks, curve.unique, curve.longest) == (8, 4, 3)


def test_an_empty_trace_has_an_empty_curve():
    assert lru_curve([]).hits([1, 100]) == [0, 0]
    assert lru_curve([TraceRequest([])]).hits([1]) == [0]


@pytest.mark.parametrize("second", [[2, 1], [3, 2], [2], [1, 3, 2]])
def test_ids_that_are_no_chains_are_told(second):
    requests = [TraceRequest([1, 2]), TraceRequest(second)]
    with pytest.raises(TraceError, match="not prefix-chained"):
        lru_curve(requests)
    curve = LRUCurve()
    with pytest.raises(TraceError, match=r"request 2 .* its block \d follows another"):
        for part in columns(requests, lambda: 1):
            curve.add(part)


def test_figures_of_the_conversation_trace(shared):
    curve = lru_curve(open_trace(shared / "traces" / "mooncake_conversation.jsonl"))
    assert (curve.blocks, curve.unique) == (288_500, 182_790)
    hits = curve.hits(182_790 * percent // 100 for percent in (1, 2, 5, 10, 20, 50))
    assert [round(100 * hit / curve.blocks, 1) for hit in hits] == [5.2, 7.9, 19.6, 27.9, 34.5, 36.3]
