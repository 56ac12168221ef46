"""Files of results: whole or not at all, and errors in words before the work begins."""

import errno
import json

import pytest

from kvloft.cli import main
from kvloft.errors import OutputError
from kvloft.files import check_outputs, write_whole


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), write_whole(path) as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_in_words(tmp_path):
    with (
        pytest.raises(OutputError, match=r"out\.json: cannot be written: No space left"),
        write_whole(tmp_path / "out.json"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_all_that_cannot_be_written_is_named_at_once(tmp_path):
    good = tmp_path / "good"
    with pytest.raises(OutputError) as found:
        check_outputs(None, tmp_path, tmp_path / "none" / "x.svg", good, tmp_path / ("n" * 300))
    folder, absent, long = str(found.value).split("\n")
    assert folder == f"{tmp_path}: is a folder; give the name of a file in it"
    assert absent.startswith(f"{tmp_path}/none/x.svg: cannot be written: No such file or directory; give")
    assert "File name too long" in long
    assert not good.exists()


def test_what_is_read_is_not_written_over(tmp_path):
    trace, other, link = tmp_path / "t.jsonl", tmp_path / "x.json", tmp_path / "link"
    trace.write_text("precious")
    link.symlink_to(trace)
    with pytest.raises(OutputError) as found:
        check_outputs(trace, other, other, link, inputs=[trace])
    first, twice, linked = str(found.value).split("\n")
    assert first == f"{trace}: is what is read here; give another name for what is written"
    assert twice == f"{other}: is given twice; give each result a file of its own"
    assert linked.startswith(f"{link}: is what is read here")
    for command in ("replay", "curve"):
        with pytest.raises(SystemExit) as end:
            main([command, str(trace), "--json", str(trace)])
        assert end.value.code == 2
    assert trace.read_text() == "precious"


@pytest.mark.parametrize(
    "command",
    [
        ["replay", "TRACE", "--json", "FOLDER"],
        ["replay", "TRACE", "--html", "FOLDER/none/x.html"],
        ["curve", "TRACE", "--json", "FOLDER/none/x.json"],
        ["curve", "TRACE", "--plot", "FOLDER/none/x.svg"],
        ["plan", "TRACE", "--model", "MODEL", "--plot", "FOLDER/none/x.svg"],
        ["plan", "TRACE", "--model", "MODEL", "--json", "FOLDER"],
        ["synth", "FOLDER"],
        ["synth", "FOLDER/none/t.jsonl"],
    ],
)
def test_commands_check_their_outputs_before_they_work(tmp_path, capsys, monkeypatch, command):
    """Nothing may be read: the trace's first line is bad, and nobody may say so."""
    (tmp_path / "out").mkdir()
    trace, model = tmp_path / "t.jsonl", tmp_path / "config.json"
    trace.write_text('{"hash_ids": 1}\n')
    model.write_text(
        json.dumps({"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "intermediate_size": 8})
    )
    names = {"TRACE": str(trace), "MODEL": str(model)}
    words = [names.get(word, word.replace("FOLDER", str(tmp_path / "out"))) for word in command]
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == ""
    assert said.err.startswith(f"error: {tmp_path}/out")
    assert list((tmp_path / "out").iterdir()) == []


def test_demo_checks_its_output_before_it_works(tmp_path, capsys):
    pytest.importorskip("vllm", reason="the demo needs kvloft[vllm]")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--json", str(tmp_path)])
    assert end.value.code == 2 and "is a folder" in capsys.readouterr().err
