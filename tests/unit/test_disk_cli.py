"""`kvloft inspect` and `kvloft bench disk`."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from test_disk_house import OTHER, SPACE, Disk, names

from disk_medium import RawDisk
from kvloft.cli import main
from kvloft.keys import Namespace
from kvloft.tiers.disk import Files
from kvloft.tiers.disk.segment import DATA, INDEX
from kvloft.tiers.disk.survey import survey


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two namespaces, nobody there."""
    for space, blocks in ((SPACE, 12), (OTHER, 5)):
        one = Disk(tmp_path / "disk", 4 << 20, space).open()
        one.store(names(blocks))
        one.load(names(3))
        one.tier.close()
    return tmp_path / "disk"


def test_says_what_is_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", place)
    assert code == 0
    for text in ("house", "another house", SPACE.name, "12 of 8 KiB", "not in use", "75% of the blocks had none"):
        assert text in out
    code, out, _ = run(capsys, "inspect", place, "--json")
    report = json.loads(out)
    assert report["charged_bytes"] == RawDisk(place).charged()
    assert {space["facts"]["model"]: space["blocks"] for space in report["namespaces"]} == {"house": 12, "another house": 5}
    assert [space["hits"] for space in report["namespaces"]] == [3, 3]


def test_verify_finds_every_damaged_block(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "inspect", place, "--verify")[0] == 0
    raw = RawDisk(place)
    for name in raw.frames()[::4]:
        frame = bytearray(raw.read(name))
        frame[-5] ^= 1
        raw.write(name, bytes(frame))
    code, out, _ = run(capsys, "inspect", place, "--verify", "--json")
    spaces = json.loads(out)["namespaces"]
    assert code == 1
    assert sum(space["verified"] for space in spaces) == 17 - 5
    assert sum(space["damaged"].get("checksum", 0) for space in spaces) == 5


def test_inspecting_disturbs_nobody(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Disk(place, 4 << 20).open()
    one.until(lambda: one.held(names(12)) == 12)
    code, out, _ = run(capsys, "inspect", place, "--verify")
    assert code == 0 and "in use" in out and "open in 1 processes" in out
    assert set(one.store(names(30, "more"))) == {one.load(names(1))[0]}
    one.tier.close()


class Vanishing(Files):
    """What has been listed is deleted at once: all of it, or the one segment that comes first."""

    def __init__(self, everything: bool) -> None:
        self.everything = everything

    def list(self, path: str) -> list[os.DirEntry[str]]:
        entries = sorted(super().list(path), key=lambda entry: entry.name)
        for entry in entries if self.everything else [entry for entry in entries if entry.name.endswith((DATA, INDEX))][:2]:
            if entry.is_dir():
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        return entries


@pytest.mark.parametrize("everything", [False, True])
def test_files_may_go_while_one_looks(place: Path, everything: bool) -> None:
    report = survey(str(place), files=Vanishing(everything))
    assert all(not space.unfit for space in report.namespaces)
    assert report.charged_bytes > 0


def test_prune_spares_what_is_in_use(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Disk(place, 4 << 20).open()
    code, out, _ = run(capsys, "inspect", place, "--prune")
    assert code == 0 and (place / OTHER.name).exists()
    code, out, _ = run(capsys, "inspect", place, "--prune", "--unused-for", "0s")
    assert code == 0 and "deleted" in out
    assert not (place / OTHER.name).exists() and (place / SPACE.name).exists()
    one.until(lambda: one.held(names(12)) == 12)
    one.tier.close()


def test_unfit_files_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / SPACE.name / "0123456789abcdef.data").write_bytes(b"left behind")
    RawDisk(place).indices()[0].write_bytes(b"nonsense")
    code, out, _ = run(capsys, "inspect", place)
    assert code == 0 and "0123456789abcdef.data" in out and "no kvloft index" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "/nowhere/at/all"], "give the directory of a disk tier"),
        (["inspect", ".", "--prune", "--unused-for", "soon"], "such as 7d"),
        (["bench", "disk", "/nowhere/at/all"], "that can be written"),
        (["bench", "disk", ".", "--sizes", "much"], "--sizes"),
        (["bench", "disk", ".", "--depths", "0"], "--depths"),
        (["bench", "disk", ".", "--amount", "1MiB,2MiB"], "--amount: '1MiB,2MiB' are several sizes; give one"),
        (["bench", "disk", ".", "--prefill", "1000"], "--prefill: how fast a disk gives tokens depends on the model"),
        (["bench", "disk", ".", "--set", "a=b"], "--set: a disk takes no settings"),
        (["bench", "store", "redis://localhost:1", "--prefill", "-5"], "--prefill: -5 is not greater than 0; give"),
        (["bench", "store", "redis://localhost:1", "--tp", "2"], "--tp: says nothing without a model; give --model too"),
    ],
)
def test_bad_input_is_answered_in_words(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2 and said in err and "Traceback" not in err


def test_bench_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        json.dumps({"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256})
    )
    (tmp_path / "disk").mkdir()
    options = ["--sizes", "64KiB", "--depths", "1,4", "--amount", "2MiB", "--model", model, "--prefill", "1000"]
    code, out, _ = run(capsys, "bench", "disk", tmp_path / "disk", *options)
    assert code == 0 and "tokens/s of computing" in out and re.search(r"\d\.\d\d GB/s", out)
    code, out, _ = run(capsys, "bench", "disk", tmp_path / "disk", *options, "--json")
    result = json.loads(out)
    assert [(row["block_bytes"], row["depth"], row["not_ok"]) for row in result["rows"]] == [(65536, 1, 0), (65536, 4, 0)]
    assert result["rows"][0]["load_tokens_per_second"] == result["rows"][0]["load"] / result["bytes_per_token"]
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_namespace_without_description_is_still_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / SPACE.name / "namespace.json").write_text("{")
    code, out, _ = run(capsys, "inspect", place)
    assert code == 0 and "its description is missing" in out
    assert Namespace(model="house").name in out
