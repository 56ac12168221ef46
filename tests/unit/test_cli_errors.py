"""Errors name options as they are typed, whatever the setting is called inside, and end no command with a traceback."""

import pytest

from kvloft.cli import main


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
    return str(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay", "TRACE", "--capacity", "all"], "--capacity: 'all' is neither a share"),
        (["replay", "TRACE", "--capacity", "99999999999"], "--capacity: '99999999999' is neither a share"),
        (["replay", "TRACE", "--policy", "best"], "--policy: 'best' is unknown; choose one of: "),
        (["replay", "TRACE", "--prefill-rate", "-1"], "--prefill-rate: -1.0 is not greater than 0"),
        (["replay", "TRACE", "--prefill-rate", "9", "--decode-rate", "0"], "--decode-rate: 0.0 is not greater than 0"),
        (["replay", "TRACE", "--prefill-rate", "9", "--bytes-per-token", "0"], "--bytes-per-token: 0 is not greater than 0"),
        (["replay", "TRACE", "--prefill-rate", "9", "--gpu-blocks", "-1"], "--gpu-blocks: -1 is negative"),
        (["replay", "TRACE", "--prefill-rate", "9", "--link", "wide"], "--link: 'wide' is not a size"),
        (["replay", "TRACE", "--prefill-rate", "9", "--tier", "disk"], "--tier: 'disk' is not of the form"),
        (["replay", "TRACE", "--prefill-rate", "9", "--speed", "0"], "--speed: 0.0 is not greater than 0"),
        (["replay", "TRACE", "--tier", "disk:1GiB"], "--tier: says nothing without time; give --prefill-rate too"),
        (["replay", "TRACE", "--gpu-blocks", "0"], "--gpu-blocks: says nothing without time"),
        (["curve", "TRACE", "--capacity", "100%", "--sample", "0.9"], "--sample: 4 samples of 0.9 each"),
        (["synth", "out.jsonl", "--rate", "0"], "--rate: 0.0 is not positive"),
        (["synth", "out.jsonl", "--mix", "none=1"], "--mix: 'none' is unknown"),
        (["plan", "TRACE", "--model", "absent", "--tp", "0"], "--model: absent: "),
        (["plan", "TRACE", "--model", "absent", "--gpu", "best"], "MI300X. For another, give the nearest"),
        (["doctor", "--host", "much"], "--host: 'much' is not a size"),
        (["bench", "disk", ".", "--model", "absent"], "--model: absent: "),
        (["inspect", ".", "--unused-for", "soon"], "--unused-for: 'soon' is not a time"),
    ],
)
def test_options_are_named_as_typed(words, said, trace, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([trace if word == "TRACE" else word for word in words])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and "Traceback" not in told
    assert said in told
