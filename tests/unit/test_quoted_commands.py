"""Commands quoted in README and docs are what the command line understands; those that can run do run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from kvloft.cli import main

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
QUOTED = re.compile(r"^(?:\$ )?kvloft (?P<line>[a-z].*)$|`kvloft (?P<inline>[a-z]+(?: [^`]*)?)`", re.M)
RUN = ("replay", "curve", "plan", "synth", "doctor", "config")
"""The others need an engine, a store or a disk to measure."""
MODEL = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "intermediate_size": 1024,
}


def quoted():
    """Each command once, with where it stands. What is optional, in brackets, counts as given."""
    found = {}
    for path in SOURCES:
        text = path.read_text().replace("\\\n", " ")
        blocks = [block for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S) if "kvloft " in block]
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        for match in [match for part in (*blocks, *re.findall(r"`[^`\n]+`", prose)) for match in QUOTED.finditer(part)]:
            words = shlex.split(
                (match["line"] or match["inline"]).translate({ord(sign): " " for sign in "[]"}), comments=True
            )
            found.setdefault(tuple(words), path.name)
    return [pytest.param(words, id=f"{name}: {' '.join(words)}") for words, name in found.items()]


def exit_code(words):
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code or 0


def test_there_are_some():
    names = {param.values[0][0] for param in quoted()}
    assert {"replay", "plan", "doctor", "bench"} <= names


@pytest.mark.parametrize("words", quoted())
def test_the_command_line_knows_it(words, capsys):
    assert exit_code([*words, "--help"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("words", [param for param in quoted() if param.values[0][0] in RUN and len(param.values[0]) > 1])
def test_it_runs(words, tmp_path, monkeypatch, capsys):
    if {"--html", "--plot"} & {*words}:
        pytest.importorskip("altair", reason="charts need kvloft[report]")
    monkeypatch.chdir(tmp_path)
    line = {"input_length": 1024, "output_length": 1}
    lines = [{**line, "timestamp": 6000 * at, "hash_ids": [at % 64, 100 + at % 64]} for at in range(200)]
    for name in ("trace.jsonl", "conversation_trace.jsonl", "TRACE"):
        Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("llama-8b").mkdir()
    for name in ("CONFIG", "config.json", "llama-8b/config.json"):
        Path(name).write_text(json.dumps(MODEL))
    for name in ("FILE", "prices.toml"):
        Path(name).write_text("host_gib_month = 0.15")
    jobs = [] if words[0] in ("synth", "doctor", "config") else ["--jobs", "1"]
    code = exit_code([*words, *jobs])
    said = capsys.readouterr()
    assert code in (0, 1), said.err
    assert said.out and "Traceback" not in said.err
    for option in {"--html", "--plot", "--output"} & {*words}:
        assert Path(words[words.index(option) + 1]).stat().st_size > 0
