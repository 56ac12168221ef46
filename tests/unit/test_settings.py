"""`kvloft config`: what it prints, what it finds, and that both read the same tables."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvloft.cli import main
from kvloft.errors import ConfigError
from kvloft.policies import BUILTIN
from kvloft.settings.build import Wanted, build, explain
from kvloft.settings.command_line import command_of, find_config, read_json
from kvloft.settings.connector import SPECS, Way, check, json_schema
from kvloft.tiers.settings import TYPES, TierPlan

ROOT = Path(__file__).parents[2]
EXTRA = "kv_connector_extra_config"
OURS = {"spec_name": "KvloftSpec", "spec_module_path": "kvloft.vllm", "cpu_bytes_to_use": "4GiB"}
WANTED = [
    Wanted(host="64GiB"),
    Wanted(host="80%", disks=["/nvme/kv:2TiB", "/hdd/kv:50%"], policy="arc"),
    Wanted(
        host="64GB",
        stores=["redis://cache:6379", "s3://bucket/folder", "mooncake://master:50051"],
        settings=["cascade.admission=second-use", "redis.ttl=3600", "record=/var/log/t.jsonl.zst", "blocks_per_chunk=4"],
    ),
    Wanted(host="64GiB", way=Way.POLICY),
    Wanted(host="50%", way=Way.POLICY, policy="arc", settings=["store_threshold=2"]),
    Wanted(host="64GiB", way=Way.TIERING, disks=["/nvme/kv:2TiB"], policy="hdi", settings=["disk.after_reset=keep"]),
]


def config(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", EXTRA: extra}


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["config", *words])
    return int(end.value.code or 0)


@pytest.mark.parametrize("wanted", WANTED)
def test_what_is_printed_is_fine_and_fits_the_schema(wanted: Wanted) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    built = json.loads(json.dumps(build(wanted)))
    checked = check(built)
    assert (checked.problems, checked.way) == ([], wanted.way)
    jsonschema.Draft202012Validator(json_schema()).validate(built)


def test_all_that_was_asked_for_is_in_it() -> None:
    extra = build(WANTED[2])[EXTRA]
    assert extra["cpu_bytes_to_use"] == "64GB"
    assert [tier["type"] for tier in extra["tiers"]] == ["redis", "objects", "mooncake"]
    assert extra["tiers"][0] == {"type": "redis", "url": "redis://cache:6379", "ttl": 3600}
    assert (extra["cascade"], extra["blocks_per_chunk"]) == ({"admission": "second-use"}, 4)
    two = build(WANTED[1])[EXTRA]["tiers"]
    assert [(tier["path"], tier["capacity"], tier.get("name")) for tier in two] == [
        ("/nvme/kv", "2TiB", None),
        ("/hdd/kv", "50%", "disk2"),
    ]


@pytest.mark.parametrize("policy", BUILTIN)
def test_a_policy_of_ours_is_not_mistaken_for_one_of_theirs(policy: str) -> None:
    extra = build(Wanted(host="1GiB", way=Way.POLICY, policy=policy))[EXTRA]
    assert extra["eviction_policy"] not in ("lru", "arc") and extra["cpu_bytes_to_use"] == 1 << 30


def test_every_fault_of_the_options_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--host", "lots", "--disk", "/x", "--policy", "lruu", "--store", "redis://u:hunter2@h", "--set", "disc.ttl=1"]
    assert run(*options, "--set", "nothing") == 2
    told = capsys.readouterr().err
    assert "hunter2" not in told
    for problem in (
        "--host: 'lots' is not a size",
        "--disk: '/x' has no size; write \"/x:2TiB\"",
        "--policy: 'lruu' is unknown; did you mean 'lru'?",
        "tiers[1].url: the URL holds a password",
        "--set: 'disc' is no tier here; did you mean disk?",
        "--set: 'nothing' is not of the form NAME=VALUE",
    ):
        assert problem in told
    assert run("--host", "1GiB", "--disk", "::", "--disk", "/y:", "--disk", ":2GiB", "--disk", "") == 2
    told = capsys.readouterr().err
    for problem in (
        "'::' has no size",
        "'/y:' has no size; write \"/y:2TiB\"",
        "':2GiB' names no folder",
        "'' names no folder",
    ):
        assert f"--disk: {problem}" in told
    assert run() == 2
    assert "--host: missing" in capsys.readouterr().err
    assert run("--host", "1GiB", "--way", "policy", "--disk", "/x:1TiB", "--store", "redis://h") == 2
    told = capsys.readouterr().err
    assert "--disk: vLLM's CPUOffloadingSpec has no tiers" in told and "--store: only kvloft's own spec" in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["a list is no configuration"]),
        ({}, ["kv_connector: missing", "kv_role: missing", f"{EXTRA}: missing"]),
        ({**config(**OURS), "kv_conector": 1}, ["kv_conector: unknown setting; did you mean kv_connector?"]),
        ({**config(**OURS), "kv_connector": "OfloadingConnector"}, ["did you mean 'OffloadingConnector'?"]),
        ({**config(**OURS), "kv_connector": "LMCacheConnectorV1"}, ['kvloft needs "OffloadingConnector"']),
        ({**config(**OURS), "kv_role": "both"}, ["kv_role: 'both' is unknown; choose one of: kv_both"]),
        ({**config(), EXTRA: [1]}, ["a list is no mapping"]),
        (config(**OURS, tiers_after_reset="burn"), [f"{EXTRA}: tiers_after_reset: 'burn' is neither \"forget\" nor"]),
        (
            config(**OURS, cascade={"admission": "second_use"}),
            ["'second_use' is unknown", "mean 'second-use'?"],
        ),
        (config(**OURS, cascade={"promote_share": 0.9, "demote_share": 0.2}), ["cascade.promote_share 0.9", "less than 1"]),
        (config(**OURS, something_else=1), ["something_else: unknown setting; known are: spec_name"]),
        (config(**OURS, blocks_per_chunk=2, block_size=64), ["block_size: says the same as blocks_per_chunk"]),
        (config(spec_name="KvloftSpec", cpu_bytes_to_use=1), ['spec_module_path: missing; give "kvloft.vllm"']),
        (config(spec_name="KvloftSpc"), ["spec_name: 'KvloftSpc' is unknown; did you mean KvloftSpec?"]),
        (config(cpu_bytes_to_use="64GiB", eviction_policy="SIEVE"), ["write 68719476736", 'so give "kvloft.vllm"']),
        (
            config(cpu_bytes_to_use="80%", eviction_policy="arc", cache_policy_module_path="kvloft.vllm"),
            ["without a unit", "'arc' is vLLM's own policy, module path or not; write \"ARC\""],
        ),
        (
            config(cpu_bytes_to_use=1, eviction_policy="SEIVE", cache_policy_module_path="kvloft.vllm"),
            ["'SEIVE' is unknown; did you mean 'SIEVE'?"],
        ),
        (config(cpu_bytes_to_use=1), ["nothing of kvloft's is in this"]),
        (
            config(
                spec_name="TieringOffloadingSpec",
                cpu_bytes_to_use=1,
                store_threshold=2,
                secondary_tiers=[
                    {"type": "DiskTier", "path": "/x", "capacity": "lots", "after_reset": "burn"},
                    {"type": "DiskTear"},
                    {"path": "/x"},
                ],
            ),
            [
                "store_threshold: is not possible",
                "secondary_tiers[0].module_path: missing",
                "secondary_tiers[0].capacity: 'lots' is not a size",
                "secondary_tiers[0].after_reset: 'burn'",
                "secondary_tiers[1].type: 'DiskTear' is unknown; did you mean DiskTier?",
                "secondary_tiers[2]: has no type",
            ],
        ),
        (
            {"kv_connector": "MultiConnector", EXTRA: {"connectors": [{"kv_connector": "X"}, config(**OURS, tears=[])]}},
            [f"connectors[1].{EXTRA}: tears: unknown setting; did you mean tiers?"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_fix_all_at_once(given: Any, words: list[str]) -> None:
    problems = check(given).problems
    assert len(problems) == len(words) or len(problems) == 1
    for word in words:
        assert word in "\n".join(problems)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tiers": [{"type": "disk", "path": "/x"}]},
        {"tiers": [{"type": "disk", "path": "/x", "capacity": "4 XB"}]},
        {"cpu_bytes_to_use": "lots"},
        {"cascade": {"pendin_seconds": 3}},
        {"transfer_threads": 99},
        {"spec_name": "Kvloft"},
        {"tiers_after_reset": "burn"},
    ],
)
def test_the_schema_refuses_what_check_refuses(wrong: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    given = config(**{**OURS, **wrong})
    assert check(given).problems
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(given)


def test_what_the_readme_shows_is_fine() -> None:
    blocks = [part.split("```")[0] for part in (ROOT / "README.md").read_text().split("```json\n")[1:]]
    assert blocks
    for block in blocks:
        assert check(json.loads(block)).problems == []


@pytest.mark.parametrize("way", Way)
def test_everything_is_explained(way: Way, capsys: pytest.CaptureFixture[str]) -> None:
    rows = explain(way)
    named = {row["name"] for row in rows}
    assert {field.name for field in SPECS[way][1]} <= named
    if way is Way.KVLOFT:
        assert {field.name for kind in TYPES.values() for field in kind.fields} <= named
    assert all(row["meaning"].endswith(".") and row["written"] for row in rows)
    assert run("--explain", "--way", way, "--json") == 0
    assert json.loads(capsys.readouterr().out) == rows


def test_only_the_tiers_asked_for_are_explained() -> None:
    assert {row["of"] for row in explain(Way.KVLOFT, ["redis"])} >= {"tiers: redis"}
    assert not any(row["of"] == "tiers: disk" for row in explain(Way.KVLOFT, ["redis"]))


# Where the configuration is found.


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        read_json("[" * 100_000 + "]" * 100_000, "it")


def test_a_command_line_is_taken_apart() -> None:
    text = json.dumps(config(**OURS))
    for option in (["--kv-transfer-config", text], [f"--kv-transfer-config={text}"], ["--kv_transfer_config", text]):
        assert find_config(["vllm", "serve", "model", *option, "--port", "1"]) == (json.loads(text), [])
    dotted = ["--kv-transfer-config.kv_role=kv_both", f"--kv-transfer-config.{EXTRA}.cpu_bytes_to_use", "7"]
    assert find_config(["vllm", *dotted])[0] == {"kv_role": "kv_both", EXTRA: {"cpu_bytes_to_use": 7}}
    _, problems = find_config(["vllm", "--kv-transfer-config", text, "--kv-offloading-size", "4"])
    assert "overrules kv_connector and cpu_bytes_to_use" in problems[0]
    with pytest.raises(ConfigError, match="vLLM runs without offloading"):
        find_config(["vllm", "serve", "model"])
    with pytest.raises(ConfigError, match=r"is not JSON: .*put all of it in single quotes"):
        find_config(["vllm", "--kv-transfer-config", "{kv_role:"])


def test_options_may_stand_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "vllm.yaml").write_text(f"model: m\nkv-transfer-config: '{json.dumps(config(**OURS))}'\n")
    assert find_config(["vllm", "serve", "--config", str(tmp_path / "vllm.yaml")])[0] == config(**OURS)


def test_a_running_engine_is_found_by_itself_or_its_child(tmp_path: Path) -> None:
    words = ["python", "vllm", "serve", "--kv-transfer-config", json.dumps(config(**OURS))]
    for pid, parent, line in ((10, 1, words), (11, 10, ["VLLM::EngineCore"])):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cmdline").write_bytes("\0".join(line).encode() + b"\0")
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    assert command_of(10, tmp_path) == command_of(11, tmp_path) == words
    with pytest.raises(ConfigError, match="--pid: 12: No such file"):
        command_of(12, tmp_path)


def test_check_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = json.dumps(config(**OURS)), json.dumps(config(**OURS, tears=[]))
    (tmp_path / "bad.json").write_text(bad)
    assert run("check", good) == 0
    assert "fine: KvloftSpec, 4 GiB of host memory, policy hdi, no tiers" in capsys.readouterr().out
    assert run("check", str(tmp_path / "bad.json")) == 1
    assert "did you mean tiers?" in capsys.readouterr().out
    assert run("check", "--json", "--", *shlex.split(f"vllm serve m --kv-transfer-config '{bad}'")) == 1
    assert json.loads(capsys.readouterr().out)["way"] == "kvloft"
    assert run("check") == run("check", str(tmp_path / "none.json")) == run("check", "{") == run("verify") == 2
    assert run("check", good, "--host", "4GiB") == 2
    assert "leave it out when checking" in capsys.readouterr().err


def test_what_is_printed_for_a_shell_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--host", "4GiB", "--disk", "/a b:1TiB", "--shell") == 0
    line = capsys.readouterr().out
    assert run("check", "--", "vllm", "serve", "m", *shlex.split(line)) == 0
    assert "tiers disk" in capsys.readouterr().out


def test_tiers_are_read_as_the_spec_reads_them() -> None:
    checked = check(build(WANTED[1]))
    assert all(isinstance(tier, TierPlan) for tier in checked.settings["tiers"])
