"""The recorder: what it writes replays to what was served, and nobody ever waits for it."""

import stat
import threading
import time

import pytest
import zstandard

from kvloft.errors import ConfigError
from kvloft.sim.replay import Replay
from kvloft.traces import record as recording
from kvloft.traces.event import TraceRequest
from kvloft.traces.formats import open_trace
from kvloft.traces.record import Asked, Recorder
from kvloft.traces.synth import Workload, synthesize


def blocks(*numbers):
    return [b"block %06d" % number for number in numbers]


class Tied(Recorder):
    """A recorder whose writer waits to be let go."""

    def __init__(self, *args, **options):
        self.go = threading.Event()
        super().__init__(*args, **options)

    def _write_all(self):
        self.go.wait()
        super()._write_all()


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst"])
def test_a_recording_replays_to_the_hits_of_the_run(tmp_path, name):
    run = Replay("arc", 500)
    recorder = Recorder(tmp_path / name, 64, {"policy": "arc", "capacity": 500})
    for request in synthesize(Workload(requests=300, block_tokens=64, seed=1)):
        hits = run.step(request)
        keys = blocks(*request.keys)
        assert recorder.record(
            Asked(keys=keys, time=time.monotonic(), input_tokens=9, session=request.session, last=request.last, hits=hits)
        )
    assert recorder.close()
    trace = open_trace(tmp_path / name)
    assert trace.block_tokens == 64
    again = Replay("arc", 500)
    recorded = list(trace)
    assert [again.step(request) for request in recorded] == [request.hits for request in recorded]
    assert again.hits == run.hits > 0
    assert recorder.written == 300
    assert trace.assumptions == []


def test_neither_keys_nor_names_can_be_read_off_the_file(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        recorder = Recorder(tmp_path / name, 16)
        recorder.record(Asked(keys=blocks(1), time=0.0, session="secret session", tenant="secret tenant"))
        recorder.close()
    texts = [(tmp_path / name).read_text() for name in ("a.jsonl", "b.jsonl")]
    assert "secret" not in texts[0] and "block 0" not in texts[0]
    first, second = (next(iter(open_trace(tmp_path / name))) for name in ("a.jsonl", "b.jsonl"))
    assert first.keys != second.keys and first.session != second.session and first.tenant != second.tenant
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_what_does_not_fit_is_dropped_counted_and_marked(tmp_path):
    recorder = Tied(tmp_path / "t.jsonl", 16, buffer_blocks=10)
    taken = [recorder.record(Asked(keys=blocks(at, at + 1), time=0.0)) for at in range(6)]
    assert taken == [True, True, True, False, False, False]
    assert recorder.dropped == 3
    recorder.go.set()
    assert recorder.close()
    trace = open_trace(tmp_path / "t.jsonl")
    assert len(list(trace)) == 3
    assert trace.assumptions == ["3 requests were not recorded, for lack of room in its buffer"]
    assert not recorder.record(Asked(keys=[], time=0.0))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst"])
def test_full_files_are_rotated_and_old_ones_deleted(tmp_path, name):
    recorder = Recorder(tmp_path / name, 16, part_bytes=1, parts=3)
    for at in range(6):
        recorder.record(Asked(keys=blocks(*range(40_000 * at, 40_000 * (at + 1))), time=0.0))
    assert recorder.close(60)
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts[-1] == name
    assert parts[:-1] == [name.replace("t.", f"t.000{number}.") for number in (4, 5, 6)][-len(parts) + 1 :]
    trace = open_trace(tmp_path / name)
    assert [len(request.keys) for request in trace] == [40_000] * 3


def test_what_was_flushed_is_readable_after_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_FLUSH_SECONDS", 0.01)
    recorder = Recorder(tmp_path / "t.jsonl.zst", 16)
    recorder.record(Asked(keys=blocks(1, 2), time=0.0))
    until = time.monotonic() + 20
    copy = tmp_path / "copy.jsonl.zst"
    found = []
    while not found and time.monotonic() < until:
        copy.write_bytes((tmp_path / "t.jsonl.zst").read_bytes())
        if copy.stat().st_size and zstandard.ZstdDecompressor().decompressobj().decompress(copy.read_bytes()):
            found = list(open_trace(copy, skip_bad=True))
    assert len(found) == 1
    recorder.close()


def test_an_error_of_the_medium_ends_the_recording_and_nothing_else(tmp_path, monkeypatch, caplog):
    recorder = Tied(tmp_path / "t.jsonl", 16)

    def fail(data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._file, "write", fail)
    assert recorder.record(Asked(keys=blocks(1), time=0.0))
    recorder.go.set()
    recorder._thread.join(20)
    assert recorder.error is not None
    assert "No space left" in caplog.text
    assert not recorder.record(Asked(keys=blocks(2), time=0.0))
    assert recorder.dropped == 1
    assert recorder.close()


def test_paths_that_are_wrong_are_told(tmp_path):
    (tmp_path / "t.jsonl").write_text("")
    for name, said in (("t.csv", "must end in"), ("t.jsonl", "File exists"), ("absent/t.jsonl", "No such file")):
        with pytest.raises(ConfigError, match=f"record: .*{said}"):
            Recorder(tmp_path / name, 16)


def test_equal_salts_make_recordings_comparable(tmp_path):
    for name in ("r.0001.jsonl", "r.jsonl"):
        recorder = Recorder(tmp_path / name, 16, salt=b"x" * 16)
        recorder.record(Asked(keys=blocks(7), time=0.0))
        recorder.close()
    first, second = open_trace(tmp_path / "r.jsonl")
    assert first.keys == second.keys != TraceRequest([7]).keys
