"""`kvloft top` against a real server, over HTTP, with real traffic."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from serving import ROUNDS

from kvloft.watch import Unreachable, compare, parse, read


def settings(disk: Path) -> str:
    """The value of `--kv-transfer-config`."""
    extra = {
        "spec_name": "KvloftSpec",
        "spec_module_path": "kvloft.vllm",
        "cpu_bytes_to_use": "16MiB",
        "eviction_policy": "arc",
        "tiers": [{"type": "disk", "path": str(disk), "capacity": "64MiB"}],
    }
    return json.dumps({"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra})


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """vLLM's own API server on a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models["llama"])]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--block-size", "32"]
    command += ["--max-model-len", "320", "--num-gpu-blocks-override", "12", "--kv-cache-memory-bytes", str(64 << 20)]
    command += ["--enforce-eager", "--max-num-seqs", "4", "--kv-transfer-config", settings(tmp_path_factory.mktemp("disk"))]
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                read(url, timeout=1)
                break
            except Unreachable:
                if running.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise AssertionError(f"the server did not come up:\n{log.read()[-4000:]}") from None
                time.sleep(0.5)
        yield url
    finally:
        running.terminate()
        running.wait(60)
        log.close()


def complete(url: str, model: Path, prompt: list[int]) -> None:
    body = {"model": str(model), "prompt": prompt, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).read()


@pytest.mark.xdist_group("engine")
def test_top_tells_what_a_server_did(server, models):
    before = read(server)
    for [prompt] in ROUNDS:
        complete(server, models["llama"], prompt)
    view = compare(before, read(server))
    assert view.host_hit_share == view.host_hit_share_ever
    assert 0.3 < view.host_hit_share < 0.7
    assert view.engine_hit_share == 0.0
    assert view.hits > 0 and view.stored > 0
    assert view.moved["load"] > 0 and view.moved["store"] > 0
    assert view.capacity == sum(view.blocks[state] for state in ("free", "writing", "ready")) == 512
    assert view.lists["t1"] + view.lists["t2"] == view.blocks["ready"]
    [tier] = view.tiers
    assert tier.name == "disk" and tier.capacity_bytes == 64 << 20 and tier.left_alone == ()


@pytest.mark.xdist_group("engine")
def test_the_command_prints_views(server, models):
    complete(server, models["llama"], ROUNDS[0][0])
    command = [sys.executable, "-m", "kvloft", "top", server, "--count", "2", "--interval", "0.2"]
    wide = {**os.environ, "COLUMNS": "120"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=wide).stdout
    assert "512 blocks readable" in shown and "disk" in shown and "in use" in shown, shown
    lines = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    views = [json.loads(line) for line in lines.splitlines()]
    assert len(views) == 2 and views[0]["url"] == server and views[0]["capacity"] == 512


def test_nothing_listens_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [sys.executable, "-m", "kvloft", "top", url, "--count", "1"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert failed.returncode == 2
    assert f"error: http://{url}/metrics: " in failed.stderr.replace("\n", "") and "is vLLM running there" in failed.stderr


def test_a_restarted_engine_is_no_negative_rate():
    before = parse('# TYPE vllm:kvloft_hits counter\nvllm:kvloft_hits_total{engine="0"} 100.0\n', 0.0)
    now = parse('# TYPE vllm:kvloft_hits counter\nvllm:kvloft_hits_total{engine="0"} 10.0\n', 2.0)
    assert compare(before, now).hits == 5.0


def test_engines_of_one_server_are_summed():
    text = '# TYPE vllm:kvloft_blocks gauge\nvllm:kvloft_blocks{engine="0",state="free"} 3.0\n'
    now = parse(text + 'vllm:kvloft_blocks{engine="1",state="free"} 4.0\n', 1.0)
    assert now.get("vllm:kvloft_blocks", "free") == 7.0
