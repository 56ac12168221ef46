"""Real vLLM over a disk: restarts, flipped bytes, files that vanish, full and hanging disks. Tokens are always the same."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import ROUNDS, Serve, text

from kvloft.settings.build import Wanted, build
from kvloft.settings.connector import EXTRA
from kvloft.vllm.engine import manager_of

pytestmark = pytest.mark.xdist_group("engine")

PROMPTS = [[text(seed, 200)] for seed in range(4)]
"""Six full blocks of 32 tokens each, that is 192 of 200 tokens."""
FULL = 192


def disk(path: Path, **settings: Any) -> dict[str, Any]:
    """A tier on disk, as `kvloft config` prints it. The models are so small that computing anew is often quicker than
    loading: not here. Nor is it asked how fast a machine is that runs other tests beside this one."""
    patient = {"lookup_seconds": 30, "pending_seconds": 60, "hang_seconds": 30, "close_seconds": 30}
    bounds = [f"cascade.{name}={value}" for name, value in {"prefill_tokens_per_second": 1.0, **patient}.items()]
    bounds += [f"disk.{name}={json.dumps(value)}" for name, value in settings.items()]
    printed = json.dumps(build(Wanted(host="64MiB", disks=[f"{path}:64MiB"], settings=bounds)))
    extra: dict[str, Any] = json.loads(printed)[EXTRA]
    return extra


def settle(llm: Any, seconds: float = 30) -> None:
    """What is on its way down arrives."""
    manager = manager_of(llm)
    until = time.monotonic() + seconds
    while manager.has_pending_work() and time.monotonic() < until:
        llm.llm_engine.step()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("model", ["llama", "mistral", "gemma3"])
def test_a_restarted_engine_goes_on_from_disk(serve: Serve, baseline: Serve, tmp_path: Path, model: str) -> None:
    plain = baseline(model, PROMPTS)
    first = serve(model, PROMPTS, disk(tmp_path), between=settle)
    second = serve(model, PROMPTS, disk(tmp_path))
    assert first.tokens == second.tokens == plain.tokens
    assert first.cached == [0] * 4
    assert second.cached == [FULL] * 4
    assert second.host_tokens == 0


def test_metrics_name_the_disk(serve: Serve, tmp_path: Path) -> None:
    from kvloft.vllm.engine import read_metric

    seen: dict[str, float] = {}

    def look(llm: Any) -> None:
        settle(llm)
        seen["disk"] = read_metric(llm, "vllm:prompt_tokens_cached_by_source", source="disk")
        seen["ok"] = read_metric(llm, "vllm:kvloft_tier_transfers", tier="disk", what="load_ok")
        seen["blocks"] = read_metric(llm, "vllm:kvloft_tier_size", tier="disk", what="blocks")

    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    serve("llama", PROMPTS, disk(tmp_path), between=look)
    assert seen["disk"] == 4 * FULL
    assert seen["ok"] == 24
    assert seen["blocks"] >= 24


def test_a_flipped_byte_in_every_block_is_a_miss(serve: Serve, baseline: Serve, tmp_path: Path) -> None:
    plain = baseline("llama", PROMPTS)
    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    assert flip_everything(tmp_path) > 0
    again = serve("llama", PROMPTS, disk(tmp_path))
    assert again.tokens == plain.tokens
    assert again.cached == [0] * 4


def flip_everything(folder: Path, stride: int = 4096) -> int:
    """Flip one byte in each page of each file that holds blocks; how many files those are."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1 << 16]
    for path in files:
        data = bytearray(path.read_bytes())
        for at in range(stride // 2, len(data), stride):
            data[at] ^= 0x10
        path.write_bytes(data)
    return len(files)


def test_another_model_finds_nothing(serve: Serve, tmp_path: Path) -> None:
    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    assert serve("mistral", PROMPTS, disk(tmp_path)).cached == [0] * 4
    assert serve("llama", PROMPTS, disk(tmp_path, namespace="another adapter")).cached == [0] * 4
    assert serve("llama", PROMPTS, disk(tmp_path), hf_overrides={"rope_theta": 5000.0}).cached == [0] * 4
    assert serve("llama", PROMPTS, disk(tmp_path)).cached == [FULL] * 4


def test_files_that_vanish_while_it_runs(serve: Serve, baseline: Serve, tmp_path: Path) -> None:
    plain = baseline("llama", ROUNDS)
    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    served = 0

    def vanish(llm: Any) -> None:
        nonlocal served
        served += 1
        if served == 2:
            for path in tmp_path.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        settle(llm)

    again = serve("llama", ROUNDS, disk(tmp_path), between=vanish)
    assert again.tokens == plain.tokens
    assert again.cached[:2] == [FULL] * 2


def test_host_memory_smaller_than_the_prompt(serve: Serve, baseline: Serve, tmp_path: Path) -> None:
    """A hit on disk that is longer than what host memory may hold for it is served as the prefix that fits."""
    plain = baseline("llama", PROMPTS)
    block = block_bytes(serve)
    settings = {"cpu_bytes_to_use": 8 * block}
    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    again = serve("llama", PROMPTS, {**disk(tmp_path), **settings})
    assert again.tokens == plain.tokens
    assert again.cached == [4 * 32] * 4


def block_bytes(serve: Serve) -> int:
    capacities: list[int] = []
    serve("llama", PROMPTS[:1], {}, between=lambda llm: capacities.append(manager_of(llm).pool.capacity))
    return (64 << 20) // capacities[0]


@pytest.mark.parametrize(("after", "found"), [("forget", 0), ("keep", FULL)])
def test_a_reset(serve: Serve, baseline: Serve, tmp_path: Path, after: str, found: int) -> None:
    plain = baseline("llama", PROMPTS + PROMPTS)

    def reset(llm: Any) -> None:
        settle(llm)
        assert llm.reset_prefix_cache(reset_connector=True)

    settings = {**disk(tmp_path), "tiers_after_reset": after}
    again = serve("llama", PROMPTS + PROMPTS, settings, between=reset)
    assert again.tokens == plain.tokens
    assert again.cached == [0] * 4 + [found] * 4


@pytest.mark.parametrize("mood", ["hangs", "fails", "dawdles"])
def test_a_disk_in_trouble_costs_hits_and_nothing_else(serve: Serve, baseline: Serve, tmp_path: Path, mood: str) -> None:
    plain = baseline("llama", ROUNDS)
    serve("llama", PROMPTS, disk(tmp_path), between=settle)
    tier = {"type": "TroubledDisk", "module_path": "troubled_disk", "path": str(tmp_path), "mood": mood}
    bounds = {"prefill_tokens_per_second": 1.0, "pending_seconds": 3.0, "hang_seconds": 0.3, "close_seconds": 0.5}
    again = serve("llama", ROUNDS, {"tiers": [tier], "cascade": bounds})
    assert again.tokens == plain.tokens
    assert again.cached[4:8] == [FULL] * 4, "host memory serves what comes again"
    if mood != "dawdles":
        assert again.cached[:4] == [0] * 4


def test_below_the_stock_manager(serve: Serve, baseline: Serve, tmp_path: Path) -> None:
    """vLLM's TieringOffloadingSpec with kvloft's DiskTier, by configuration; on the CPU its worker is kvloft's."""
    from vllm.platforms import current_platform

    plain = baseline("llama", PROMPTS)
    tier = {"type": "DiskTier", "module_path": "kvloft.vllm", "path": str(tmp_path), "capacity": "64MiB"}
    stock = {"spec_name": "TieringOffloadingSpec", "spec_module_path": None}
    if current_platform.is_cpu():
        stock = {"spec_name": "StockTieringSpec", "spec_module_path": "stock_tiering"}
    settings = {**stock, "cpu_bytes_to_use": 64 << 20, "secondary_tiers": [tier]}
    first = serve("llama", PROMPTS, settings, between=settle)
    second = serve("llama", PROMPTS, settings)
    assert first.tokens == second.tokens == plain.tokens
    assert second.cached == [FULL] * 4


def test_a_full_file_system_stops_writing_and_nothing_else(serve: Serve, baseline: Serve, small_disk: Path) -> None:
    plain = baseline("llama", ROUNDS)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - (256 << 10)))
    again = serve("llama", ROUNDS, disk(small_disk / "cache"), between=settle)
    assert again.tokens == plain.tokens
    assert again.cached[4:8] == [FULL] * 4
    filler.unlink()
    third = serve("llama", ROUNDS, disk(small_disk / "cache"), between=settle)
    assert third.tokens == plain.tokens
    fourth = serve("llama", PROMPTS, disk(small_disk / "cache"))
    assert fourth.cached == [FULL] * 4
