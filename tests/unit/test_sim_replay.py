"""Plain replay: what counts as a hit, capacities, figures on a public trace."""

import json

import pytest

from kvloft.cli import main
from kvloft.errors import ConfigError
from kvloft.sim.intake import Intake, parse_quotas
from kvloft.sim.replay import Capacity, Replay, survey
from kvloft.traces.event import TraceRequest


def test_a_hit_is_a_block_of_the_leading_run():
    run = Replay("lru", 4)
    assert run.step(TraceRequest([1, 2, 3])) == 0
    assert run.step(TraceRequest([1, 2, 4])) == 2
    assert run.step(TraceRequest([9, 1, 2])) == 0
    result = run.result("tiny", 0.5)
    assert (result.hit_blocks, result.total_blocks, result.stored_blocks, result.evicted_blocks) == (2, 9, 5, 1)
    assert result.hit_ratio == 2 / 9
    assert result.refused_stores == 0


def test_a_request_longer_than_the_cache_is_refused_whole():
    run = Replay("lru", 2)
    run.step(TraceRequest([1, 2]))
    assert run.step(TraceRequest([1, 2, 3])) == 2
    assert run.result("tiny", 1.0).refused_stores == 1
    assert run.step(TraceRequest([1, 2])) == 2


def test_hints_go_by_the_time_of_the_trace():
    """What has run out by then leaves first, and what is pinned until later stays, whatever the clock on the wall says."""
    asked = [
        TraceRequest([1, 2], 0.0, pin_until=50.0),
        TraceRequest([3, 4], 10.0),
        TraceRequest([5, 6], 20.0, ttl=5.0),
        TraceRequest([7, 8], 30.0),
        TraceRequest([9, 10], 40.0),
        TraceRequest([11, 12], 60.0),
    ]
    run = Replay("lru", 6)
    left = []
    for request in asked:
        run.step(request)
        left.append(sorted(run.victims))
    assert left == [[], [], [], [5, 6], [3, 4], [1, 2]]


def test_quotas_and_admission_are_those_of_the_pool_that_serves():
    """A tenant at its share makes room from its own blocks; a scan stores the head that fits beside what was read twice."""
    asked = [TraceRequest([1, 2], tenant="big"), TraceRequest([3, 4], tenant="small"), TraceRequest([5, 6], tenant="small")]
    run = Replay("lru", 4, Intake(quotas={"small": 0.5}))
    left = []
    for request in asked:
        run.step(request)
        left.append(sorted(run.victims))
    assert left == [[], [], [3, 4]]

    guarded, plain = Replay("lru", 8, Intake("scan-guard")), Replay("lru", 8)
    for run in (guarded, plain):
        for _ in range(3):
            run.step(TraceRequest([1, 2]))
        run.step(TraceRequest([*range(10, 18)]))
    assert guarded.step(TraceRequest([1, 2])) == 2
    assert guarded.step(TraceRequest([*range(10, 18)])) == 6
    assert plain.step(TraceRequest([1, 2])) == 0


@pytest.mark.parametrize("text", ["acme", "acme=", "=0.5", "acme=0", "acme=1.5", "acme=nan", "acme=much"])
def test_quotas_that_are_none_are_named_as_wrong(text):
    with pytest.raises(ConfigError, match="TENANT=SHARE"):
        parse_quotas(["other=0.5", text])


def test_a_quota_is_given_once_and_a_rule_by_its_name():
    assert parse_quotas(["a=0.5", "b=c=1"]) == {"a": 0.5, "b=c": 1.0}
    with pytest.raises(ConfigError, match="named twice"):
        parse_quotas(["a=0.5", "a=0.6"])
    with pytest.raises(ConfigError, match="everything, scan-guard"):
        Intake("guard")


def test_a_quota_for_nobody_is_named_as_wrong():
    asked = [TraceRequest([1], tenant="acme"), TraceRequest([2])]
    Intake(quotas={"acme": 0.5}).check(asked)
    with pytest.raises(ConfigError, match="'acne'; tenants in it are: acme"):
        Intake(quotas={"acme": 0.5, "acne": 0.5}).check(asked)
    with pytest.raises(ConfigError, match="names no tenants"):
        Intake(quotas={"acme": 0.5}).check(asked[1:])


@pytest.mark.parametrize(
    ("text", "unique", "blocks"), [("1%", 182_790, 1827), ("0.5 %", 399, 1), ("100%", 7, 7), ("20000", 5, 20_000)]
)
def test_capacities_are_shares_rounded_down_or_blocks(text, unique, blocks):
    assert Capacity.parse(text).of(unique) == blocks


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "-5%", "1.5", "five", "1/0", "5%%"])
def test_other_capacities_are_named_as_wrong(text):
    with pytest.raises(ConfigError, match="capacity"):
        Capacity.parse(text)


def test_a_share_of_less_than_a_block_says_so():
    with pytest.raises(ConfigError, match="less than one block"):
        Capacity.parse("1%").of(99)


def test_a_survey_counts_far_and_near_ids():
    requests = [TraceRequest([0, 1, 2]), TraceRequest([0, 1 << 60, 3]), TraceRequest([0, 1 << 60, (1 << 60) + 1])]
    found = survey(requests)
    assert (found.requests, found.blocks, found.unique, found.longest) == (3, 9, 6, 3)


def test_figures_of_the_conversation_trace(tmp_path, shared):
    out = tmp_path / "results.json"
    with pytest.raises(SystemExit) as end:
        main(
            [
                "replay",
                str(shared / "traces" / "mooncake_conversation.jsonl"),
                "--policy",
                "lru",
                "--capacity",
                "1%,20%",
                "--json",
                str(out),
            ]
        )
    assert not end.value.code
    results = json.loads(out.read_bytes())
    assert [round(100 * result["hit_ratio"], 1) for result in results] == [5.2, 34.5]
    assert [result["capacity_blocks"] for result in results] == [1827, 36558]
    assert [result["capacity_fraction"] for result in results] == [0.01, 0.2]


def test_more_blocks_than_any_machine_holds_are_no_size():
    with pytest.raises(ConfigError, match="99999999999999999999"):
        Capacity.parse("99999999999999999999")
