"""Two real vLLM engines over one real store: what one computed, the other loads, with the same tokens; and outages."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serve
from test_tiers import FULL, PROMPTS

from kvloft.testing.servers import MooncakeServer, RedisServer, S3Server, Server
from kvloft.vllm.engine import manager_of, read_metric
from store_media import need

pytestmark = pytest.mark.xdist_group("engine")

KINDS: dict[str, type[Server]] = {"redis": RedisServer, "objects": S3Server, "mooncake": MooncakeServer}
PATIENT = {"lookup_timeout": 15.0, "get_timeout": 15.0, "put_timeout": 15.0, "fresh": 0.05}
MOONCAKE = {"lookup_timeout": 4.0, "get_timeout": 4.0, "put_timeout": 4.0, "fresh": 0.05}
"""Its library takes timeouts once for all of a process, other tests included."""
QUICK = {"connect_timeout": 0.5, "lookup_timeout": 1.0, "get_timeout": 1.0, "put_timeout": 1.0}


def settings_of(server: Server, **more: Any) -> dict[str, Any]:
    """The tier's settings as an operator would write them."""
    if isinstance(server, RedisServer):
        return {"type": "redis", "url": server.url, **PATIENT, **more}
    if isinstance(server, MooncakeServer):
        return {"type": "mooncake", "url": server.url, "metadata": server.metadata, **MOONCAKE, **more}
    assert isinstance(server, S3Server)
    options = {"endpoint": server.endpoint, "region": "us-east-1"}
    return {"type": "objects", "url": f"s3://{server.bucket}", "options": options, "allow_http": True, **PATIENT, **more}


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3Server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3Server.secret_key)
    monkeypatch.setenv("BLOCKS_SECRET", "an engine's secret, never printed")


@pytest.fixture(scope="module", params=list(KINDS))
def server(request: Any) -> Iterator[Server]:
    need(KINDS[request.param])
    with KINDS[request.param]() as running:
        yield running


def settle(llm: Any) -> None:
    """What is on its way down arrives, or is given up."""
    manager, end = manager_of(llm), time.monotonic() + 20.0
    while manager.has_pending_work():
        assert time.monotonic() < end, "demotions have no end"
        llm.llm_engine.step()
        time.sleep(0.001)


def tiers(server: Server, *others: dict[str, Any], **more: Any) -> dict[str, Any]:
    # So tiny a model computes faster than it loads; a tier slower than that would be left alone. And machines may be slow.
    cascade = {
        "prefill_tokens_per_second": 1.0,
        "lookup_seconds": 20.0,
        "pending_seconds": 40.0,
        "breaker_seconds": 0.2,
        "breaker_longest_seconds": 0.4,
    }
    return {"tiers": [*others, settings_of(server, **more)], "cascade": cascade}


def test_what_one_engine_computed_another_loads(serve: Serve, baseline: Serve, server: Server) -> None:
    plain = baseline("llama", PROMPTS)
    first = serve("llama", PROMPTS, tiers(server, prefix="two"), between=settle)
    second = serve("llama", PROMPTS, tiers(server, prefix="two"))
    assert first.tokens == second.tokens == plain.tokens
    assert (first.cached, second.cached) == ([0] * 4, [FULL] * 4)


@pytest.mark.parametrize("server", ["redis", "mooncake"], indirect=True)
def test_sealed_blocks_are_shared_by_who_has_the_secret(
    serve: Serve, baseline: Serve, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    plain = baseline("llama", PROMPTS)
    sealed = tiers(server, prefix="sealed", secret="env:BLOCKS_SECRET", compression=1)
    serve("llama", PROMPTS, sealed, between=settle)
    second = serve("llama", PROMPTS, sealed)
    assert second.tokens == plain.tokens and second.cached == [FULL] * 4
    monkeypatch.setenv("BLOCKS_SECRET", "another engine's secret")
    third = serve("llama", PROMPTS, sealed)
    assert third.tokens == plain.tokens and third.cached == [0] * 4


def test_a_server_killed_and_restarted_between_and_during(serve: Serve, baseline: Serve, server: Server) -> None:
    """Dead when the second engine starts: it computes. Back while that runs: it stores again. Then a third engine loads."""
    plain = baseline("llama", PROMPTS)
    over = tiers(server, prefix="killed", **QUICK)
    serve("llama", PROMPTS, over, between=settle)
    server.kill()
    served = 0

    def restart(llm: Any) -> None:
        nonlocal served
        served += 1
        if served == 2:
            server.start()
            # Whatever the breaker of stores thinks of the server, it asks again by now.
            time.sleep(0.5)
        settle(llm)

    second = serve("llama", PROMPTS, over, between=restart)
    assert second.tokens == plain.tokens and second.cached == [0] * 4
    third = serve("llama", PROMPTS, over)
    assert third.tokens == plain.tokens
    assert third.cached[-1] == FULL, "what was stored after the restart is there"


def test_a_server_that_stops_answering_stops_no_engine(serve: Serve, baseline: Serve, server: Server) -> None:
    """Stopped as it is, while the engine runs and wants to load from it: tokens are computed instead."""
    plain = baseline("llama", PROMPTS)
    over = tiers(server, prefix="paused", **QUICK)
    serve("llama", PROMPTS, over, between=settle)
    served = 0

    def stop(llm: Any) -> None:
        nonlocal served
        served += 1
        if served == 1:
            server.pause()
        if served == 3:
            server.resume()

    try:
        second = serve("llama", PROMPTS, over, between=stop)
    finally:
        server.resume()
    assert second.tokens == plain.tokens
    assert second.cached[0] == FULL and second.cached[1] == 0


def test_a_full_server_stops_no_engine(serve: Serve, baseline: Serve) -> None:
    """It has room for a few blocks and refuses the others: these are computed."""
    need(RedisServer)
    plain = baseline("llama", PROMPTS)
    with RedisServer("--maxmemory", "1500kb", "--maxmemory-policy", "noeviction") as small:
        dropped = 0.0

        def look(llm: Any) -> None:
            nonlocal dropped
            settle(llm)
            dropped = read_metric(llm, "vllm:kvloft_tier_transfers", tier="redis", what="store_dropped")

        first = serve("llama", PROMPTS, tiers(small), between=look)
        second = serve("llama", PROMPTS, tiers(small))
    assert first.tokens == second.tokens == plain.tokens
    assert dropped > 0 and second.cached != [FULL] * 4


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_host_disk_and_store_in_one_engine(serve: Serve, baseline: Serve, server: Server, tmp_path: Path) -> None:
    """All three at once; the disk is asked first, and a new machine without one goes on from the store."""
    plain = baseline("llama", PROMPTS)
    disk = {"type": "disk", "path": str(tmp_path / "one"), "capacity": "64MiB"}
    seen: dict[str, float] = {}

    def look(llm: Any) -> None:
        settle(llm)
        for name in ("disk", settings_of(server)["type"]):
            seen[name] = read_metric(llm, "vllm:kvloft_tier_transfers", tier=name, what="load_ok")

    first = serve("llama", PROMPTS, tiers(server, disk, prefix="three"), between=settle)
    again = serve("llama", PROMPTS, tiers(server, disk, prefix="three"), between=look)
    assert seen == {"disk": 24.0, settings_of(server)["type"]: 0.0}
    disk["path"] = str(tmp_path / "another")
    moved = serve("llama", PROMPTS, tiers(server, disk, prefix="three"), between=look)
    assert seen == {"disk": 0.0, settings_of(server)["type"]: 24.0}
    assert first.tokens == again.tokens == moved.tokens == plain.tokens
    assert again.cached == moved.cached == [FULL] * 4


def test_an_engine_in_another_process_loads_and_prints_no_secret(serve: Serve, models: Any, monkeypatch: Any) -> None:
    """It has a Redis with a password, where another engine has left encrypted blocks, and two stores that are not there.
    vLLM's log is at its most talkative."""
    for kind in KINDS.values():
        need(kind)
    pytest.importorskip("cryptography")
    monkeypatch.setenv("STORE_PASSWORD", "the password of a user")
    with RedisServer("--requirepass", "the password of a user") as server:
        shared = settings_of(server, secret="env:BLOCKS_SECRET", password="env:STORE_PASSWORD")
        serve("llama", PROMPTS[:1], {"tiers": [shared]}, between=settle)
        gone = [settings_of(kind(), secret="env:BLOCKS_SECRET", **QUICK) for kind in (S3Server, MooncakeServer)]
        script = """
import json, sys
from pathlib import Path
from kvloft.vllm.engine import generate, run_engine, set_environment
set_environment(verbose=True)
import os
os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
settings = {"cpu_bytes_to_use": "64MiB", "tiers": json.loads(sys.argv[2])}
with run_engine(Path(sys.argv[1]), 12, settings, max_model_len=320) as llm:
    print("from the store:", generate(llm, [json.loads(sys.argv[3])], 6)[0].num_cached_tokens)
"""
        arguments = [str(models["llama"]), json.dumps([shared, *gone]), json.dumps(PROMPTS[0][0])]
        run = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=240, check=False
        )
    assert run.returncode == 0, run.stderr[-2000:]
    assert f"from the store: {FULL}" in run.stdout
    said = run.stdout + run.stderr
    assert "env:BLOCKS_SECRET" in said and "env:STORE_PASSWORD" in said, "vLLM prints its configuration"
    for secret in (os.environ["BLOCKS_SECRET"], "the password of a user", S3Server.secret_key):
        assert secret not in said
