"""Sweeps: the same results however the work is cut, and errors before any work is done."""

import gzip
import json
import multiprocessing

import msgspec
import pytest
import zstandard

from kvloft.cli import main
from kvloft.errors import ConfigError, KvloftError, TraceError
from kvloft.sim import sweep as sweeps
from kvloft.sim.curve import curves
from kvloft.sim.latency import Machine
from kvloft.sim.replay import Capacity, Replay
from kvloft.sim.sample import Sample, estimate, find_trunk
from kvloft.sim.sweep import sweep, sweep_timed
from kvloft.sim.tier import TierModel, parse_rate, parse_tier
from kvloft.traces.formats import open_trace
from kvloft.traces.native import Header, native_line
from kvloft.traces.synth import Agents, LogNormal, Workload, synthesize

POLICIES = ["lru", "arc", "s3-fifo", "optimum", "min"]
SIZES = [Capacity.parse(text) for text in ("3%", "20%", "600")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    agents = Agents(tools=LogNormal(600, 0.1), first=LogNormal(300, 0.3), helper_first=LogNormal(300, 0.1))
    mix = {"chat": 1.0, "agents": 0.5, "rag": 1.0}
    workload = Workload(requests=300, mix=mix, agents=agents, block_tokens=256, seed=2)
    lines = [msgspec.json.encode(Header(block_tokens=256)) + b"\n", *map(native_line, synthesize(workload))]
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module")
def expected(path):
    return sweep(open_trace(path), POLICIES, SIZES, workers=1)


def test_results_come_policy_by_policy_and_size_by_size(path, expected):
    assert [result.policy for result in expected] == [policy for policy in POLICIES for _ in SIZES]
    assert [result.capacity_blocks for result in expected[:3]] == [
        expected[0].capacity_blocks,
        expected[1].capacity_blocks,
        600,
    ]
    run = Replay("arc", expected[4].capacity_blocks)
    for request in open_trace(path):
        run.step(request)
    assert run.result("t.jsonl", 0.2) == expected[4]


def test_processes_make_no_difference(path, expected):
    told = []
    results = sweep(open_trace(path), POLICIES, SIZES, workers=2, progress=lambda done, total: told.append((done, total)))
    assert results == expected
    assert told[-1][0] == told[-1][1] == len(expected) * expected[0].total_blocks


def test_reading_a_trace_again_for_each_run_makes_no_difference(path, expected, monkeypatch):
    monkeypatch.setattr(sweeps, "_HELD", 0)
    assert sweep(open_trace(path), POLICIES, SIZES, workers=1) == expected


@pytest.mark.parametrize(("name", "pack"), [("t.gz", gzip.compress), ("t.zst", zstandard.compress)])
def test_compression_makes_no_difference(path, expected, tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(path.read_bytes()))
    results = sweep(open_trace(tmp_path / name), POLICIES, SIZES, workers=1)
    assert [msgspec.structs.replace(result, trace="t.jsonl") for result in results] == expected


def test_the_curve_of_lru_is_what_sweeps_give_without_one(path, tmp_path, monkeypatch):
    """If no request says that its conversation is over; the next test is about a trace that does."""
    header, *lines = path.read_bytes().splitlines(keepends=True)
    (tmp_path / "t.jsonl").write_bytes(header + b"".join(line.replace(b',"last":true', b"") for line in lines))
    untold = open_trace(tmp_path / "t.jsonl")
    assert not any(request.last for request in untold)
    expected = sweep(untold, ["lru"], SIZES[1:], workers=1)
    monkeypatch.setattr(Replay, "step", None)
    assert curves(untold, ["lru"], SIZES[1:], workers=1) == expected


def test_curves_are_what_sweeps_give(path, expected):
    assert any(request.last for request in open_trace(path))
    tiny = Capacity(blocks=2)
    assert curves(open_trace(path), POLICIES, SIZES, workers=1) == expected
    (curve,) = curves(open_trace(path), ["lru"], [tiny], workers=1)
    (replayed,) = sweep(open_trace(path), ["lru"], [tiny], workers=1)
    assert curve == replayed
    assert curve.refused_stores > 0


def test_what_is_wrong_is_told_before_any_run(path, tmp_path):
    trace = open_trace(path)
    with pytest.raises(ConfigError, match=r"policy 'lruu' is unknown; choose one of: default, lru, .*optimum, min"):
        sweep(trace, ["lru", "lruu"], SIZES)
    with pytest.raises(ConfigError, match="less than one block"):
        sweep(trace, ["lru"], [Capacity.parse("0.000001%")])
    with pytest.raises(ConfigError, match="'optimum' is unknown"):
        sweep_timed(trace, Machine(block_tokens=256, block_bytes=1, prefill_tokens_per_second=1), ["optimum"], SIZES)


def test_errors_of_other_processes_arrive(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [Header(block_tokens=1), {"keys": [1, 2]}, {"keys": [2, 1]}]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    with pytest.raises(TraceError, match="not prefix-chained"):
        sweep(open_trace(path), ["optimum", "min"], [Capacity(blocks=1)], workers=2)


def test_a_killed_process_is_told_and_not_waited_for(path):
    def kill(done, total):
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(KvloftError, match=r"was killed, .* --jobs 1"):
        sweep(open_trace(path), POLICIES * 5, SIZES, workers=2, progress=kill)


def test_interrupting_a_sweep_stops_its_processes(path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(open_trace(path), POLICIES * 5, SIZES, workers=2, progress=interrupt)


def test_timed_sweeps_run_in_processes_too(path):
    machine = Machine(
        block_tokens=256, block_bytes=1 << 20, prefill_tokens_per_second=20_000, gpu_blocks=200,
        tiers=(TierModel("disk", 500 << 20),),
    )  # fmt: skip
    one = sweep_timed(open_trace(path), machine, ["lru", "arc"], SIZES[:1], 4.0, workers=1)
    two = sweep_timed(open_trace(path), machine, ["lru", "arc"], SIZES[:1], 4.0, workers=2)
    assert one == two
    assert one[0].trace == "t.jsonl"
    assert one[0].capacity_fraction == 0.03
    slow = sweep_timed(open_trace(path), machine, ["lru"], SIZES[:1], 1.0, workers=1)
    assert slow[0].ttft_mean < one[0].ttft_mean
    with pytest.raises(ConfigError, match="speed"):
        sweep_timed(open_trace(path), machine, ["lru"], SIZES, 0.0)


def test_samples_are_disjoint_and_keep_families_whole(path):
    trace = open_trace(path)
    counted, trunk = find_trunk(trace)
    assert counted.requests == 300
    assert trunk
    samples = [list(Sample(trace, trunk, part / 4, (part + 1) / 4, 7)) for part in range(4)]
    assert sum(map(len, samples)) == 300
    families = [{next((key for key in request.keys if key not in trunk), -1) for request in sample} for sample in samples]
    assert all(not a & b - {-1} for at, a in enumerate(families) for b in families[at + 1 :])
    assert max(map(len, samples)) < 200


def test_estimates_are_near_the_truth_and_say_how_near(path):
    sizes = [Capacity.parse("20%"), Capacity.parse("60%")]
    truth = sweep(open_trace(path), ["lru", "arc"], sizes, workers=1)
    found = estimate(open_trace(path), ["lru", "arc"], sizes, 0.25, 4, seed=1, workers=1)
    for result, exact in zip(found, truth, strict=True):
        assert (result.policy, result.capacity_blocks) == (exact.policy, exact.capacity_blocks)
        assert result.sampled_blocks == exact.total_blocks
        assert 0 < result.error < 0.1
        assert abs(result.hit_ratio - exact.hit_ratio) < 4 * result.error + 0.02
    assert found == estimate(open_trace(path), ["lru", "arc"], sizes, 0.25, 4, seed=1, workers=1)
    assert all(50 <= result.families <= 75 for result in found)
    with pytest.raises(ConfigError, match="at most 1"):
        estimate(open_trace(path), ["lru"], sizes, 0.3, 4)


def test_samples_that_say_nothing_are_refused_and_small_ones_say_so(path, capsys):
    sizes = [Capacity.parse("20%")]
    with pytest.raises(ConfigError, match=r"0\.1 of \d+ request families are too few .*; give at least 0\.\d+"):
        estimate(open_trace(path), ["lru"], sizes, 0.1, 4)
    with pytest.raises(ConfigError, match="leave it out: replaying all is exact"):
        estimate(open_trace(path), ["lru"], sizes, 0.01, 20)
    with pytest.raises(SystemExit):
        main(["curve", str(path), "--capacity", "20%", "--policy", "lru", "--sample", "0.25", "--jobs", "1"])
    assert "below 400 the error is often larger" in capsys.readouterr().out


def test_media_are_read_from_text():
    assert parse_tier("disk:2GiB") == TierModel("disk", 2 << 30)
    assert parse_tier("far:1TB:2GB:1GB:0.01") == TierModel("far", 10**12, 0.01, 2e9, 1e9)
    for text in ("disk", ":1GB", "disk:much", "disk:1GB:1GB:1GB:soon", "a:1:1:1:1:1"):
        with pytest.raises(ConfigError, match="tier: "):
            parse_tier(text)
    assert parse_rate("link", "25GB") == 25e9
    with pytest.raises(ConfigError, match="link: "):
        parse_rate("link", "fast")


@pytest.mark.parametrize(
    "command",
    [
        ["replay", "--policy", "lru,default", "--capacity", "5%"],
        ["replay", "--capacity", "5%", "--prefill-rate", "20000", "--tier", "disk:1GiB", "--gpu-blocks", "100"],
        ["curve", "--capacity", "5%,20%"],
        ["curve", "--capacity", "20%", "--sample", "0.25"],
    ],
)
def test_commands_print_a_table_and_write_json(path, tmp_path, capsys, command):
    out = tmp_path / "results.json"
    with pytest.raises(SystemExit) as end:
        main([command[0], str(path), *command[1:], "--jobs", "1", "--json", str(out)])
    assert not end.value.code
    assert "t.jsonl" in capsys.readouterr().out
    results = json.loads(out.read_bytes())
    assert all(0 <= result["hit_ratio"] <= 1 and result["trace"] == "t.jsonl" for result in results)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    with pytest.raises(SystemExit):
        main([command[0], str(path), *command[1:], "--jobs", "1", "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out) == results and "t.jsonl" in said.err
