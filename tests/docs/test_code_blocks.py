"""Every code block of README and docs is run, or checked by what would read it.

A page's blocks run in order in one folder that looks like a clone, as a reader would run them. Shells and Python run for
real; programs that need a GPU, a cluster or a store are written down (`doc_commands`) and what they were told is checked.
"""

import http.server
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import doc_configs
import pytest
from doc_blocks import PAGES, ROOT, Block, inline_commands, name_of, read_blocks, steps_of
from doc_commands import check_call, read_calls, write_programs

from kvloft.cli import main
from kvloft.traces.synth import Workload, parse_mix, synthesize, write_trace

SHOWN = {
    ("README.md", "5 conversations: their tokens together, mean time to first token (TTFT)"): (
        "one run's screen, with its times; tests/e2e/test_demo.py runs the command and looks at the counts"
    ),
    ("docs/figures.md", "trunk + (capacity - trunk) * R      blocks (capacity * R, if the trunk does not fit)"): (
        "a formula; tests/unit/test_sim_sweep.py holds the samples"
    ),
}
"""Blocks of text that nothing can run: by page and first line, why."""
MODEL = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "intermediate_size": 1024,
}
LANGUAGES = {"bash", "console", "python", "json", "toml", "yaml", "dockerfile", "text"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone in which a reader has what pages speak of: traces, a model's configuration, prices."""
    place = tmp_path / "kvloft"
    place.mkdir()
    for name in ("benchmarks", "docs", "etc", "examples"):
        (place / name).symlink_to(ROOT / name)
    activate = place / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    workload = Workload(requests=80, seed=1, block_tokens=512, sessions_a_second=0.2, mix=parse_mix("chat=1"))
    write_trace(place / "trace.jsonl", workload, synthesize(workload), lambda done, of: None)
    lines = [
        {"timestamp": 6000 * at, "input_length": 1024, "output_length": 1, "hash_ids": [at % 32, 100 + at % 32]}
        for at in range(80)
    ]
    (place / "conversation_trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("config.json", "llama-8b/config.json"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(MODEL))
    (place / "prices.toml").write_text("host_gib_month = 0.15")
    return place


@pytest.fixture
def engine():
    """The address of what answers like vLLM's server, once it has found a request to be right."""

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                doc_configs.check_request(body, self.path)
                status, answer = 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
            except Exception as error:
                status, answer = 400, {"error": {"message": repr(error)}}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Not on the tests' screen."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_shell(block: Block, place: Path) -> None:
    programs, record = place.parent / "programs", place.parent / f"calls-{block.line}"
    if not programs.exists():
        write_programs(programs)
    environment = {
        **os.environ,
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "COMMANDS": str(record),
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }
    # On one core the simulator starts no processes, which takes longer than replaying traces as small as these.
    core = random.choice(sorted(os.sched_getaffinity(0)))
    for step in steps_of(block):
        done = subprocess.run(
            ["taskset", "--cpu-list", str(core), "bash", "-euo", "pipefail", "-c", step.command],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{block}: {step.command}\n{done.stdout}\n{done.stderr}"
        if step.output is not None:
            assert _lines(done.stdout) == _lines(step.output), f"{block}: {step.command}"
    for name, arguments in read_calls(record):
        check_call(name, arguments, place)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("page", [page for page in PAGES if read_blocks(page)], ids=name_of)
def test_blocks_of(page: Path, clone: Path, engine: str, monkeypatch: pytest.MonkeyPatch):
    blocks = read_blocks(page)
    if any(option in block.text for option in ("--html", "--plot") for block in blocks):
        pytest.importorskip("altair", reason="charts need kvloft[report]")
    packages = clone.parent / "packages"
    packages.mkdir()
    monkeypatch.chdir(clone)
    monkeypatch.syspath_prepend(packages)
    module = ModuleType("my_plugins")
    monkeypatch.setitem(sys.modules, "my_plugins", module)
    for block in blocks:
        match block.language:
            case "bash" | "console":
                run_shell(block, clone)
            case "python":
                exec(compile(block.text.replace("http://localhost:8000", engine), str(block), "exec"), vars(module))
            case "json":
                doc_configs.check_json(block.text)
            case "toml":
                doc_configs.check_toml(block.text, packages)
            case "yaml":
                doc_configs.check_yaml(block.text)
            case "dockerfile":
                doc_configs.check_dockerfile(block.text)
            case "text":
                assert (block.page, block.first_line) in SHOWN, f"{block}: say in SHOWN why nothing can check it"
            case _:
                pytest.fail(f"{block}: is in no language that is checked; choose one of: {', '.join(sorted(LANGUAGES))}")


def test_what_is_only_shown_is_there():
    shown = {(block.page, block.first_line) for page in PAGES for block in read_blocks(page) if block.language == "text"}
    assert shown == SHOWN.keys()


@pytest.mark.parametrize("page", [page for page in PAGES if inline_commands(page)], ids=name_of)
def test_commands_in_sentences_of(page: Path, capsys: pytest.CaptureFixture[str]):
    for words in inline_commands(page):
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert not end.value.code, f"{words}: {capsys.readouterr().err}"
