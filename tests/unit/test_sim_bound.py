"""Bounds: a worked example, figures on a public trace, inputs that have no bound."""

import json

import pytest

from kvloft.cli import main
from kvloft.errors import TraceError
from kvloft.sim.bound import Future, optimum
from kvloft.traces.columns import hold
from kvloft.traces.event import TraceRequest


def test_a_worked_example():
    requests = [TraceRequest(keys) for keys in ([1, 2, 3], [4, 5], [1, 2, 3], [4, 5], [1, 2, 6])]
    hits, stored = optimum(Future(hold(requests)), 2)
    assert hits == [0, 0, 2, 0, 2]
    assert stored == 2


def test_an_empty_trace_has_no_hits():
    assert optimum(Future(hold([])), 1) == ([], 0)
    assert optimum(Future(hold([TraceRequest([]), TraceRequest([])])), 1) == ([0, 0], 0)


@pytest.mark.parametrize("second", [[2, 1], [3, 2], [2]])
def test_ids_that_are_no_chains_are_told_where(second):
    with pytest.raises(TraceError, match=r"request [12] .*: its block \d follows another block"):
        Future(hold([TraceRequest([1, 2]), TraceRequest(second)]))


def test_figures_of_the_conversation_trace(tmp_path, shared):
    out = tmp_path / "results.json"
    trace = str(shared / "traces" / "mooncake_conversation.jsonl")
    with pytest.raises(SystemExit):
        main(["replay", trace, "--policy", "optimum", "--json", str(out)])
    ratios = [round(100 * result["hit_ratio"], 1) for result in json.loads(out.read_bytes())]
    assert ratios == [24.6, 31.4, 36.6, 36.6, 36.6, 36.6]
