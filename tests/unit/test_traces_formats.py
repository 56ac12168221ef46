"""Readers: what each makes of its format, detection, compression, bad lines, joined blocks."""

import gzip
import json
import pickle
import re

import msgspec
import pytest
import zstandard

from kvloft.cli import main
from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace
from kvloft.traces.native import MADE, Header, native_line

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]},
]
QWEN = [
    {"chat_id": 5, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 32, "output_length": 1, "type": "text",
     "turn": 1, "hash_ids": [10, 11]},
    {"chat_id": 6, "parent_chat_id": 5, "timestamp": 2.0, "input_length": 48, "output_length": 1, "type": "text",
     "turn": 2, "hash_ids": [10, 11, 12]},
    {"chat_id": 7, "parent_chat_id": 6, "timestamp": 9.0, "input_length": 48, "output_length": 1, "type": "text",
     "turn": 3, "hash_ids": [10, 11, 13]},
]  # fmt: skip


def write_lines(path, lines):
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def session(**changes):
    asked = {"t": 0.0, "type": "n", "model": "m", "in": 150, "out": 3, "hash_ids": [1, 2, 3]}
    return {
        "id": "s",
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 64,
        "system_tokens": 70,
        "requests": [asked, {**asked, "t": 5.0, "in": 200, "hash_ids": [1, 2, 3, 4]}],
        **changes,
    }


def test_mooncake(tmp_path):
    trace = open_trace(write_lines(tmp_path / "any.name", MOONCAKE))
    assert trace.block_tokens == 512
    assert list(trace) == [TraceRequest([0, 1, 2], 0.0, 1100, 5), TraceRequest([0, 3], 1.5, 600, 7)]
    assert trace.position == trace.size == (tmp_path / "any.name").stat().st_size


def test_qwen_sessions_are_named_by_their_first_turn(tmp_path):
    trace = open_trace(write_lines(tmp_path / "t.jsonl", QWEN))
    assert trace.block_tokens == 16
    assert [(request.time, request.session) for request in trace] == [(0.5, "5"), (2.0, "5"), (9.0, "5")]


def test_native_keys_are_numbers_or_digests(tmp_path):
    header = Header(block_tokens=16, source=MADE)
    digests = (7).to_bytes(8, "little") + b"\xff" * 8
    lines = [header, {"keys": [3, 4], "tenant": "a", "last": True}, {"dropped": 3}, {"keys": digests, "hits": 1}]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", lines))
    assert trace.block_tokens == 16
    assert list(trace) == [TraceRequest([3, 4], tenant="a", last=True), TraceRequest([7, (1 << 63) - 1], hits=1)]
    assert any("3 requests" in assumption for assumption in trace.assumptions)


def test_native_lines_say_everything(tmp_path):
    asked = TraceRequest([1, 2], 0.25, 40, 9, "s", "tenant", True, 1, 60.0, 3, 90.0)
    path = tmp_path / "t.jsonl"
    path.write_bytes(msgspec.json.encode(Header(block_tokens=16)) + b"\n" + native_line(asked))
    trace = open_trace(path)
    assert list(trace) == [asked]
    assert trace.assumptions == []


def test_that_a_made_trace_tells_ends_is_said(tmp_path):
    path = tmp_path / "t.jsonl"
    for last in (False, True):
        path.write_bytes(
            msgspec.json.encode(Header(block_tokens=16, source=MADE)) + b"\n" + native_line(TraceRequest([1], last=last))
        )
        trace = open_trace(path)
        assert list(trace)
        assert ["tell when they end" in said for said in trace.assumptions] == [True] * last


def test_a_rotated_recording_is_one_trace(tmp_path):
    header = Header(block_tokens=16, salt="x")
    for name, keys in (("r.0009.jsonl", [1]), ("r.0010.jsonl", [2]), ("r.jsonl", [3]), ("s.0001.jsonl", [9])):
        write_lines(tmp_path / name, [header, {"keys": keys}])
    assert [request.keys for request in open_trace(tmp_path / "r.jsonl")] == [[1], [2], [3]]
    write_lines(tmp_path / "r.jsonl", [Header(block_tokens=16, salt="y"), {"keys": [3]}])
    with pytest.raises(TraceError, match=r"r.jsonl, line 1, field salt: another salt"):
        list(open_trace(tmp_path / "r.jsonl"))


def test_sessions_get_ids_of_their_own_and_seeded_starts(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(session(id=name)))
    trace = open_trace(tmp_path, seed=3, spread=100)
    requests = list(trace)
    by_session = {}
    for request in requests:
        by_session.setdefault(request.session, []).append(request)
    a, b = by_session["a"], by_session["b"]
    assert not {*a[1].keys} & {*b[1].keys}
    assert a[0].keys == a[1].keys[:3]
    assert [request.time for request in requests] == sorted(request.time for request in requests)
    assert a[1].time - a[0].time == pytest.approx(5)
    assert all(0 <= first.time <= 100 for first in (a[0], b[0]))
    assert [request.time for request in open_trace(tmp_path, seed=3, spread=100)] == [request.time for request in requests]
    assert [request.time for request in open_trace(tmp_path, seed=4, spread=100)] != [request.time for request in requests]
    assert any("seed 3" in assumption for assumption in trace.assumptions)


def test_sub_agents_are_requests_of_their_session(tmp_path):
    helper = {"t": 2.0, "type": "subagent", "agent_id": "x", "requests": [
        {"t": 1.0, "type": "n", "model": "m", "in": 64, "out": 1, "hash_ids": [8]},
        {"t": 9.0, "type": "n", "model": "m", "in": 64, "out": 1, "hash_ids": [8, 9]},
    ]}  # fmt: skip
    asked = session()["requests"]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(session(requests=[asked[0], helper, asked[1]]), indent=1))
    requests = list(open_trace(path))
    assert [request.time for request in requests] == [0.0, 3.0, 5.0, 11.0]
    assert requests[1].keys == requests[3].keys[:1]
    assert {request.session for request in requests} == {"s"}


def test_a_shared_prefix_is_modelled_on_request_and_said(tmp_path):
    for name, tools in (("a", 64), ("b", 64), ("c", 63)):
        (tmp_path / f"{name}.json").write_text(json.dumps(session(id=name, tool_tokens=tools)))
    trace = open_trace(tmp_path, shared_prefix=True)
    first = {request.session: request.keys for request in trace if len(request.keys) == 3}
    assert first["a"][:2] == first["b"][:2]
    assert first["a"][2] != first["b"][2]
    assert not {*first["c"]} & {*first["a"]}
    assert any("modelled" in assumption for assumption in trace.assumptions)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_compression_is_seen_by_content(tmp_path, ending):
    plain = write_lines(tmp_path / "plain", MOONCAKE).read_bytes()
    packed = {
        "": plain,
        ".gz": gzip.compress(plain),
        ".zst": zstandard.compress(plain[:50]) + zstandard.compress(plain[50:]),
    }
    path = tmp_path / "without-ending"
    path.write_bytes(packed[ending])
    assert list(open_trace(path)) == list(open_trace(tmp_path / "plain"))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_damaged_files_are_told_and_can_be_used_as_far_as_they_go(tmp_path, pack):
    lines = [{**MOONCAKE[0], "hash_ids": [n, n + 10**6]} for n in range(100_000)]
    path = write_lines(tmp_path / "t.jsonl", lines)
    packed = pack(path.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match=r"t.jsonl: the compressed data are damaged or cut short"):
        list(open_trace(path))
    trace = open_trace(path, skip_bad=True)
    assert 100 < len(list(trace)) < 100_000
    assert trace.skipped >= 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"timestamp": 0, "hash_ids": [1]}', "line 2, field input_length: Object missing required field"),
        (b'{"timestamp": 0, "input_length": 5, "hash_ids": [1, "x"]}', r"line 2, field hash_ids\[1\]: Expected `int`"),
        (b'{"timestamp": -1, "input_length": 5, "hash_ids": [1]}', "line 2, field timestamp: Expected `float` >= 0"),
        (b'{"timestamp": 0, "input_length": 5, "hash_ids": [1, 2, 1]}', "line 2, field hash_ids: a block appears twice"),
        (b'{"timestamp": 0, "input_le', "line 2: JSON is malformed"),
        (b"\xff\xfe", "line 2: JSON is malformed"),
    ],
)
def test_a_bad_line_gives_file_line_field_and_reason(tmp_path, bad, said, capsys):
    path = tmp_path / "t.jsonl"
    good = [msgspec.json.encode(line) for line in MOONCAKE]
    path.write_bytes(b"\n".join([good[0], bad, b"", good[1]]) + b"\n")
    with pytest.raises(TraceError, match=re.escape(str(path)) + ", " + said):
        list(open_trace(path))
    trace = open_trace(path, skip_bad=True)
    assert len(list(trace)) == 2
    assert trace.skipped == 1
    with pytest.raises(SystemExit) as end:
        main(["replay", str(path), "--capacity", "2", "--jobs", "1"])
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requests": [{"t": 0.0}]}, r"field requests\[0\].hash_ids: neither a request nor a sub-agent"),
        ({"requests": [{"t": 0.0, "hash_ids": [1, 1]}]}, r"field requests\[0\].hash_ids: a block appears twice"),
        ({"requests": [{"t": "x", "hash_ids": [1]}]}, r"field requests\[0\].t: Expected `float`"),
        ({"block_size": 32}, "field block_size: 32 tokens a block, but 64 before"),
    ],
)
def test_a_bad_session_gives_file_field_and_reason(tmp_path, changes, said):
    (tmp_path / "a.json").write_text(json.dumps(session()))
    (tmp_path / "b.json").write_text(json.dumps(session(**changes)))
    with pytest.raises(TraceError, match=re.escape(str(tmp_path / "b.json")) + ", " + said):
        list(open_trace(tmp_path))
    trace = open_trace(tmp_path, skip_bad=True)
    assert len(list(trace)) == 2
    assert trace.skipped == 1


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", b"[1, 2]\n", b'{"a": 1}\n'])
def test_what_looks_like_nothing_is_told(tmp_path, content):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"empty|looks like no known format"):
        open_trace(path)


def test_names_that_are_wrong_are_told(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        open_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="'csv' is unknown; choose one of: kvloft, mooncake, qwen, sessions"):
        open_trace(write_lines(tmp_path / "t", MOONCAKE), "csv")
    with pytest.raises(TraceError, match="is a folder"):
        open_trace(tmp_path, "mooncake")
    (tmp_path / "t").unlink()
    with pytest.raises(TraceError, match="holds no file"):
        open_trace(tmp_path)


def test_a_native_file_needs_its_header(tmp_path):
    path = write_lines(tmp_path / "t", [{"keys": [1]}])
    with pytest.raises(TraceError, match="line 1: the first line must be a header"):
        open_trace(path, "kvloft")
    write_lines(path, [{"format": "kvloft-trace", "version": 2, "block_tokens": 16}])
    with pytest.raises(TraceError, match="version 2 is unknown"):
        open_trace(path)


def test_joined_blocks_are_named_by_their_last_part(tmp_path):
    lines = [{**MOONCAKE[0], "hash_ids": ids} for ids in ([0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 5], [])]
    path = write_lines(tmp_path / "t", lines)
    trace = open_trace(path, block_tokens=1024)
    assert trace.block_tokens == 1024
    assert [request.keys for request in trace] == [[1, 3, 4], [1, 3], [1, 5], []]
    with pytest.raises(TraceError, match="give a multiple of 512"):
        open_trace(path, block_tokens=768)


def test_traces_can_be_pickled(tmp_path):
    path = write_lines(tmp_path / "t", MOONCAKE)
    trace = open_trace(path, block_tokens=1024)
    assert list(pickle.loads(pickle.dumps(trace))) == list(trace)


def test_the_public_sessions(shared):
    requests = list(open_trace(shared / "traces" / "claude_code"))
    assert len(requests) == 1671
    assert sum(len(request.keys) for request in requests) == 2_917_809


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"hash_ids": [18446744073709551616]}'])
def test_lines_that_no_reader_can_hold_are_bad_lines(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(TraceError, match="line 1"):
        list(open_trace(path))
