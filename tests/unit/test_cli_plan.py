"""`kvloft plan`, as it is typed."""

import json

import msgspec
import pytest

from kvloft.cli import main
from kvloft.cli.plan import read_sizes
from kvloft.errors import ConfigError
from kvloft.traces.event import TraceRequest
from kvloft.traces.native import Header, native_line

MODEL = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return str(tmp_path / "config.json")


@pytest.fixture
def trace(tmp_path):
    """Two prompts in turn, a minute apart, 32 in all: 8,192 tokens and 1 GiB of KV each."""
    chains = [list(range(16)), list(range(100, 116))]
    return write(tmp_path, [{"timestamp": 60_000 * at, "hash_ids": chains[at % 2]} for at in range(32)])


def write(folder, lines):
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps({"input_length": 8192, "output_length": 1, **line}) + "\n" for line in lines))
    return str(path)


def run(*arguments, jobs=1):
    """The exit code."""
    with pytest.raises(SystemExit) as exit:
        main(["plan", *arguments, "--jobs", str(jobs), "--policy", "lru"])
    return exit.value.code


def test_a_plan_that_pays(trace, model, tmp_path, capsys):
    out = tmp_path / "plan.json"
    sizes = ["--host", "0..4GiB", "--disk", "0,8GiB", "--steps", "3", "--gpu-kv", "1GiB"]
    assert run(trace, "--model", model, *sizes, "--json", str(out)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Buy 2 GiB of host memory, no disk; use the policy lru." in said
    assert "Expect 93.8% of the blocks to hit (host memory 93.8%); without it 0.0% do." in said
    assert "A disk does not pay beside it." in said
    assert "Sure: in 8 of 8 parts of the trace's time, taken alone, it pays." in said
    assert '"cpu_bytes_to_use": "2GiB"' in said
    found = json.loads(out.read_text())
    assert len(found["plan"]["options"]) == 1 + 3 + 3 * 2
    best = found["plan"]["best"]
    assert (best["host_bytes"], best["disk_bytes"]) == (2 << 30, 0)
    assert best["prefill_seconds_saved"] == pytest.approx(30 * 8191 / found["setup"]["machine"]["prefill_tokens_per_second"])


def test_one_that_does_not(trace, model, tmp_path, capsys):
    prices = tmp_path / "prices.toml"
    prices.write_text('host_gib_month = 1e6\ncurrency = "CHF"')
    assert run(trace, "--model", model, "--host", "0,2GiB", "--disk", "0", "--gpu-kv", "1GiB", "--prices", str(prices)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Caching below the GPU does not pay for this trace at these prices." in said
    assert "CHF a month" in said and "kv-transfer-config" not in said


def test_a_measured_rate_takes_the_place_of_an_assumed_one(trace, model, tmp_path, capsys):
    out = tmp_path / "plan.json"
    run(trace, "--model", model, "--host", "1GiB", "--disk", "0", "--prefill-rate", "5000", "--json", str(out))
    assert "5,000 tokens a second, as given" in " ".join(capsys.readouterr().out.split())
    assert json.loads(out.read_text())["setup"]["machine"]["prefill_tokens_per_second"] == 5000


def test_the_number_of_processes_changes_nothing(trace, model, tmp_path):
    alone, together = tmp_path / "1.json", tmp_path / "2.json"
    sizes = ["--model", model, "--host", "0,1GiB", "--disk", "0,8GiB"]
    assert run(trace, *sizes, "--json", str(alone)) == run(trace, *sizes, "--json", str(together), jobs=2)
    assert alone.read_text() == together.read_text()


def test_ranks_share_heads_and_have_a_link_each(trace, model, tmp_path):
    out = tmp_path / "plan.json"
    run(trace, "--model", model, "--host", "1GiB", "--disk", "0", "--tp", "4", "--gpu-kv", "1GiB", "--json", str(out))
    machine = json.loads(out.read_text())["setup"]["machine"]
    assert machine["block_bytes"] == 512 * 131072
    assert machine["gpu_blocks"] == 4 * (1 << 30) // machine["block_bytes"]
    assert machine["link_bytes_per_second"] == 4 * 50e9


def test_all_that_is_wrong_is_said_at_once(tmp_path, capsys):
    arguments = {
        "--model": str(tmp_path / "absent"),
        "--gpu": "H1000",
        "--gpu-kv": "much",
        "--host": "8GiB..1GiB",
        "--disk": "0..big",
        "--admission": "all",
        "--disk-rates": "fast",
        "--mfu": "2",
        "--speed": "0",
        "--link": "wide",
        "--prices": str(tmp_path / "none.toml"),
    }
    assert run(str(tmp_path / "no.jsonl"), *(word for pair in arguments.items() for word in pair)) == 2
    said = capsys.readouterr().err
    for words in (
        "--model: /",
        "--gpu: 'H1000'",
        "--gpu-kv: 'much'",
        "--host: '8GiB..1GiB'",
        "--disk: 'big'",
        "--admission: 'all'",
    ):
        assert words in said
    for words in (
        "--disk-rates: 'fast'",
        "--mfu: 2",
        "--speed: 0",
        "--link: 'wide'",
        "none.toml",
        "there is no such file or folder",
    ):
        assert words in said
    assert "Traceback" not in said


def test_more_than_the_gpu_has(trace, model, capsys):
    assert run(trace, "--model", model, "--gpu", "L4", "--gpu-kv", "40GiB") == 2
    assert "--gpu-kv: 40GiB is more than an L4 has" in capsys.readouterr().err


def test_a_trace_without_times(tmp_path, model, capsys):
    path = tmp_path / "trace.jsonl"
    requests = [TraceRequest([at % 2], None, 512) for at in range(20)]
    path.write_bytes(msgspec.json.encode(Header(block_tokens=512)) + b"\n" + b"".join(map(native_line, requests)))
    sizes = ["--model", model, "--host", "1GiB", "--disk", "0"]
    assert run(str(path), *sizes) == 2
    assert "give --request-rate" in capsys.readouterr().err
    assert run(str(path), *sizes, "--request-rate", "0.1") in (0, 1)
    assert "0.1 requests come a second, evenly." in " ".join(capsys.readouterr().out.split())


def test_the_page_and_the_chart(trace, model, tmp_path):
    pytest.importorskip("altair", reason="charts need kvloft[report]")
    page, chart = tmp_path / "plan.html", tmp_path / "plan.svg"
    sizes = ["--host", "0,2GiB", "--disk", "0,8GiB", "--gpu-kv", "1GiB"]
    assert run(trace, "--model", model, *sizes, "--html", str(page), "--plot", str(chart)) == 0
    text = page.read_text()
    for words in ("Buy 2 GiB of host memory", "What was assumed", "How sure", "kv-transfer-config", "Where blocks hit"):
        assert words in text
    assert text.count('class="chart"') == 5
    assert chart.stat().st_size > 1000
    assert run(trace, "--model", model, "--plot", str(tmp_path / "plan.gif")) == 2
    assert not (tmp_path / "plan.gif").exists()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("0", (0,)),
        ("0GiB,1KiB", (0, 1024)),
        ("2KiB, 1KiB", (1024, 2048)),
        ("0..4KiB", (0, 1024, 2048, 4096)),
        ("1KiB..16KiB", (1024, 4096, 16384)),
    ],
)
def test_sizes(text, sizes):
    assert read_sizes("host", text, 3) == sizes


@pytest.mark.parametrize("text", ["", "..", "0..", "1GiB..0", "-1", "a,b"])
def test_no_sizes(text):
    with pytest.raises(ConfigError, match="host: "):
        read_sizes("host", text, 3)
