"""Generated workloads: seeds, chains, parameters, what the command writes."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from kvloft.cli import main
from kvloft.errors import ConfigError
from kvloft.sim.bound import Future
from kvloft.traces.columns import hold
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Agents, LogNormal, Rag, Workload, parse_mix, synthesize

SMALL = Agents(tools=LogNormal(600, 0.1), first=LogNormal(300, 0.3), helper_first=LogNormal(300, 0.1), helpers=0.1)
MIX = {"chat": 1.0, "agents": 1.0, "rag": 1.0, "scan": 0.2}


def workload(**changes):
    return Workload(**{"requests": 400, "mix": MIX, "agents": SMALL, "block_tokens": 64, **changes})


def test_equal_seeds_give_equal_traces():
    assert list(synthesize(workload(seed=5))) == list(synthesize(workload(seed=5)))
    assert list(synthesize(workload(seed=5))) != list(synthesize(workload(seed=6)))


@pytest.mark.parametrize("kind", MIX)
def test_every_kind_makes_chains_in_the_order_of_time(kind):
    requests = list(synthesize(workload(mix={kind: 1.0}, tenants=2)))
    assert len(requests) == 400
    Future(hold(requests))
    assert [request.time for request in requests] == sorted(request.time for request in requests)
    assert all(len(request.keys) == request.input_tokens // 64 for request in requests)
    assert {request.tenant for request in requests} == {"tenant-0", "tenant-1"}


def test_conversations_grow_by_what_was_said():
    by_session = defaultdict(list)
    for request in synthesize(workload(mix={"chat": 1.0}, requests=1000)):
        by_session[request.session].append(request)
    assert max(map(len, by_session.values())) > 3
    for turns in by_session.values():
        for before, after in pairwise(turns):
            assert after.keys[: len(before.keys)] == before.keys
            assert after.input_tokens > before.input_tokens + before.output_tokens
            assert not before.last


def test_tenants_share_nothing_and_system_prompts_are_shared():
    owners = defaultdict(set)
    heads = Counter()
    for request in synthesize(workload(tenants=3, mix={"chat": 1.0, "rag": 1.0})):
        heads[request.keys[0]] += 1
        for key in request.keys:
            owners[key].add(request.tenant)
    assert all(len(tenants) == 1 for tenants in owners.values())
    assert heads.most_common(1)[0][1] > 20


def test_scans_never_come_again():
    seen = [key for request in synthesize(workload(mix={"scan": 1.0}, requests=100)) for key in request.keys]
    assert len(seen) == len(set(seen))


def test_all_that_is_wrong_is_named_at_once():
    wrong = Workload(requests=0, sessions_a_second=0, tenants=1, mix={"chatt": 1.0, "rag": -1.0})
    with pytest.raises(ConfigError) as error:
        next(synthesize(wrong))
    assert len(error.value.problems) == 5
    assert "'chatt' is unknown; choose from chat, agents, rag, scan" in str(error.value)


def test_mixes_are_parsed():
    assert parse_mix("chat=0.5, rag") == {"chat": 0.5, "rag": 1.0}
    with pytest.raises(ConfigError, match="not of the form"):
        parse_mix("chat=much")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
def test_the_command_writes_what_the_generator_makes(tmp_path, name):
    parameters = tmp_path / "workload.json"
    parameters.write_text(json.dumps({"requests": 50, "seed": 3, "mix": {"rag": 1}, "rag": {"retrieved": 2}}))
    with pytest.raises(SystemExit) as end:
        main(["synth", str(tmp_path / name), "--parameters", str(parameters)])
    assert not end.value.code
    trace = open_trace(tmp_path / name)
    assert list(trace) == list(synthesize(Workload(requests=50, seed=3, mix={"rag": 1.0}, rag=Rag(retrieved=2))))
    assert trace.block_tokens == 16


def test_a_failed_command_leaves_nothing_behind(tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["synth", str(tmp_path / "t.jsonl"), "--mix", "nothing=1"])
    assert end.value.code == 2
    assert not list(tmp_path.iterdir())
