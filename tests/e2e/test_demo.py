"""`kvloft demo`, as a user runs it but shorter, in this process."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvloft.cli import main

pytestmark = pytest.mark.xdist_group("engine")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer and shorter conversations; no file outside of the test's folder."""
    for name, value in {"CONVERSATIONS": 3, "TURNS": 2, "SYSTEM_TOKENS": 64, "DOCUMENT_TOKENS": 200}.items():
        monkeypatch.setattr(f"kvloft.cli.demo.{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["demo", *args])
    return int(ended.value.code or 0)


def test_json_says_what_happened(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--policy", "arc", "--capacity", "8MiB") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["policy"], result["capacity_bytes"], result["identical"]) == ("arc", 8 << 20, True)
    first, second, later = result["turns"]
    assert [turn["restarted"] for turn in result["turns"]] == [False, False, True]
    for turn in (first, second, later):
        assert turn["identical"]
        for side in (turn["without"], turn["with"]):
            assert side["prompt_tokens"] == side["computed_tokens"] + side["loaded_tokens"] + side["gpu_cached_tokens"]
            assert len(side["first_token_seconds"]) == 3
            assert min(side["first_token_seconds"]) > 0
    assert first["with"]["loaded_tokens"] == second["without"]["loaded_tokens"] == 0
    assert second["with"]["loaded_tokens"] > 3 * 128
    assert second["with"]["computed_tokens"] < second["without"]["computed_tokens"]
    # All of it, where loading is quicker than computing.
    assert later["with"]["loaded_tokens"] > 3 * 128
    assert later["without"]["loaded_tokens"] == 0
    pool = result["pool"]
    assert pool["free"] + pool["writing"] + pool["ready"] == pool["capacity"] == 64


def test_screen_shows_the_table_and_nothing_of_vllm(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--json", str(tmp_path / "result.json")) == 0
    said = capfd.readouterr()
    for word in (
        "turn",
        "computed",
        "loaded",
        "TTFT",
        "yes",
        "host memory   24 MiB",
        "evictions     0",
        "came from disk",
        "identical",
    ):
        assert word in said.out
    for noise in ("WARNING", "INFO", "vllm.", "Loading safetensors"):
        assert noise not in said.out + said.err
    assert json.loads((tmp_path / "result.json").read_text())["identical"] is True


def test_other_tokens_are_seen_and_end_in_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from engine_specs import ZeroedWorker

    from kvloft.vllm.spec import KvloftSpec

    monkeypatch.setattr(KvloftSpec, "worker_class", ZeroedWorker)
    assert run() == 1
    said = capfd.readouterr().out
    assert "NO" in said
    assert "DIFFERENT" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--capacity", "lots"], ["--capacity", "'lots'", "4GiB"]),
        (["--policy", "best"], ["--policy", "'best'", "lru, arc"]),
        (["--capacity", "1KiB"], ["cpu_bytes_to_use", "1024 bytes hold no block", "at least"]),
    ],
)
def test_bad_input_is_explained_without_a_traceback(
    args: list[str], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    for word in words:
        assert word in said


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def find(name: str, *rest: Any) -> Any:
        return None if name == "vllm" else find_spec(name, *rest)

    monkeypatch.setattr("kvloft.vllm.engine.find_spec", find)
    assert run() == 2
    assert "pip install 'kvloft[vllm]'" in capfd.readouterr().err
