"""`kvloft top` against a real server, over HTTP, with real traffic."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from serving import ROUNDS

from kvloft.metric_names import BLOCKS, METRICS, TIER_SIZE, Where
from kvloft.watch import Unreachable, compare, parse, read

pytestmark = pytest.mark.xdist_group("server")  # one for all


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


EVENTS = "ipc:///tmp/kvloft-test-{}"
AGAIN = EVENTS + "-again"
END = b"\xff" * 8
"""Where the server of a port publishes KV events."""
PIDS: dict[str, int] = {}
"""Processes of servers."""


class Subscriber:
    """Rebuilds what lies where from nothing but the KV events that a server publishes. It comes late, and asks for what was
    published before."""

    def __init__(self, url: str) -> None:
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.subscribe(b"")
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        port = url.rpartition(":")[2]
        self.again = zmq.Context.instance().socket(zmq.DEALER)
        self.again.connect(AGAIN.format(port))
        self.socket.connect(EVENTS.format(port))
        assert monitor.poll(30_000), "nobody publishes there"
        self.socket.disable_monitor()
        self.places: dict[tuple[str, str | None], set[object]] = defaultdict(set)
        self.next = 0

    def listen(self, seconds: float) -> bool:
        """Take in one batch, and those before it; False if there is none for so long."""
        if not self.socket.poll(1000 * seconds):
            return False
        _, sequence, payload = self.socket.recv_multipart()
        number = int.from_bytes(sequence, "big")
        if number > self.next:
            self.catch_up(number)
        assert number == self.next, "events were lost"
        self.take(payload)
        return True

    def catch_up(self, until: int) -> None:
        """Take in the batches up to this one, as the server kept them."""
        self.again.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self.again.poll(30_000), "nobody says it again"
            _, _, sequence, payload = self.again.recv_multipart()
            if sequence == END:
                return
            if int.from_bytes(sequence, "big") == self.next < until:
                self.take(payload)

    def take(self, payload: bytes) -> None:
        from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch

        self.next += 1
        for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
            if isinstance(event, AllBlocksCleared):
                self.places.clear()
                continue
            place = self.places[event.medium, event.ownership]
            if isinstance(event, BlockStored):
                place.update(event.block_hashes)
            else:
                assert place.issuperset(event.block_hashes)
                place.difference_update(event.block_hashes)


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
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": EVENTS.format(port)}
    told["replay_endpoint"] = AGAIN.format(port)
    command += ["--kv-events-config", json.dumps(told)]
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
        PIDS[url] = running.pid
        yield url
    finally:
        running.terminate()
        running.wait(60)
        log.close()


@pytest.fixture(scope="module")
def subscriber(server: str) -> Subscriber:
    return Subscriber(server)


def complete(url: str, model: Path, prompt: list[int], tenant: str = "") -> None:
    body = {"model": str(model), "prompt": prompt, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    if tenant:
        body["kv_transfer_params"] = {"kvloft": {"tenant": tenant}}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).read()


def test_top_tells_what_a_server_did(server, models):
    before = read(server)
    for [prompt] in ROUNDS:
        complete(server, models["llama"], prompt, "team a")
    view = compare(before, read(server))
    assert view.host_hit_share == view.host_hit_share_ever
    assert 0.3 < view.host_hit_share < 0.7
    assert view.engine_hit_share == 0.0
    assert view.hits > 0 and view.stored > 0
    assert view.moved["load"] > 0 and view.moved["store"] > 0
    assert view.capacity == sum(view.blocks[state] for state in ("free", "writing", "ready")) == 512
    assert view.lists["t1"] + view.lists["t2"] == view.blocks["ready"]
    assert view.sources["host"] > 0.3 and "disk" not in view.sources
    assert list(view.tenants) == ["team a"] and view.tenants["team a"]["loaded"] == pytest.approx(view.hits)
    [tier] = view.tiers
    assert tier.name == "disk" and tier.capacity_bytes == 64 << 20 and tier.left_alone == ()


def test_the_command_prints_views(server, models):
    complete(server, models["llama"], ROUNDS[0][0])
    command = [sys.executable, "-m", "kvloft", "top", server, "--count", "2", "--interval", "0.2"]
    wide = {**os.environ, "COLUMNS": "120"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=wide).stdout
    assert "512 blocks readable" in shown and "disk" in shown and "in use" in shown, shown
    lines = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    views = [json.loads(line) for line in lines.splitlines()]
    assert len(views) == 2 and views[0]["url"] == server and views[0]["capacity"] == 512


def test_kv_events_tell_what_lies_in_host_memory_and_on_disk(server, subscriber, models):
    for [prompt] in ROUNDS:
        complete(server, models["llama"], prompt)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        while subscriber.listen(0.5):
            pass
        sizes = read(server)
        host, disk = sizes.get(BLOCKS, "ready"), sizes.get(TIER_SIZE, "disk", "blocks")
        seen = tuple(len(subscriber.places[place]) for place in (("CPU", None), ("STORAGE", "disk")))
        if host and seen == (host, disk) and host == disk:
            break
        complete(server, models["llama"], ROUNDS[0][0][:40])
    assert seen == (host, disk) and host > 20
    assert subscriber.places["CPU", None] == subscriber.places["STORAGE", "disk"]


def test_a_running_server_has_its_configuration_checked(server):
    children = Path(f"/proc/{PIDS[server]}/task/{PIDS[server]}/children").read_text().split()
    for pid in (PIDS[server], *map(int, children)):
        command = [sys.executable, "-m", "kvloft", "config", "check", "--pid", str(pid)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "fine: KvloftSpec, 16 MiB of host memory, policy arc, tiers disk" in checked.stdout


def test_every_metric_of_a_server_is_in_the_table(server, models):
    complete(server, models["llama"], ROUNDS[0][0], "team a")
    with urllib.request.urlopen(f"{server}/metrics", timeout=60) as answer:
        kinds = dict(re.findall(r"^# TYPE (vllm:kvloft_\w+) (\w+)$", answer.read().decode(), re.M))
    told = {name.removesuffix("_total"): kind for name, kind in kinds.items() if not name.endswith("_created")}
    expected = {metric.name: str(metric.kind) for metric in METRICS if metric.where is not Where.STOCK}
    assert told == expected


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


def test_numbers_of_several_engines_are_summed_and_ages_are_not():
    kinds = {"waiting_seconds": "gauge", "cascade": "gauge", "tenant_blocks": "counter"}
    lines = [f"# TYPE vllm:kvloft_{name} {kind}" for name, kind in kinds.items()]
    for engine, age in (("0", 3.0), ("1", 5.0)):
        lines.append(f'vllm:kvloft_waiting_seconds{{engine="{engine}"}} {age}')
        lines.append(f'vllm:kvloft_cascade{{engine="{engine}",what="waiting"}} 2.0')
        lines.append(f'vllm:kvloft_tenant_blocks_total{{engine="{engine}",tenant="t{engine}",what="stored"}} {age}')
    view = compare(parse("", 0.0), parse("\n".join(lines) + "\n", 2.0))
    assert (view.waiting, view.waiting_seconds) == (4.0, 5.0)
    assert view.tenants == {"t1": {"loaded": 0.0, "stored": 2.5}, "t0": {"loaded": 0.0, "stored": 1.5}}
    assert list(view.tenants) == ["t1", "t0"]
