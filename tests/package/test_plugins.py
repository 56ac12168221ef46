"""Policies and tiers of other distributions: really installed ones, broken ones, two of one name."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvloft
from kvloft.errors import ConfigError
from kvloft.keys import Namespace
from kvloft.policies import load_policy, make_policy, policy_names
from kvloft.testing.policies import PolicyLaws
from kvloft.tiers.settings import read_tier, type_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed examples/plugin."""
    place = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(
        ROOT / "examples/plugin", place / "source", ignore=shutil.ignore_patterns("*.egg-info", "build")
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(place / "site"), str(source)], check=True)
    return place / "site"


@pytest.fixture
def beside(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(installed)
    yield
    sys.modules.pop("my_plugins", None)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a distribution that is nothing but entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(distribution: str, group: str, point: str) -> None:
        info = tmp_path / f"{distribution}-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")

    return install


@pytest.mark.usefixtures("beside")
def test_names_are_known_once_a_package_is_installed():
    assert "mru" in policy_names() and "shelf" in type_names()
    policy = make_policy("mru", 10)
    assert (policy.name, policy.capacity) == ("mru", 10)
    assert make_policy("mru+chains", 10).capacity == 10
    tier = read_tier({"type": "shelf", "blocks": 3, "name": "near"}).open(100, Namespace(model="m"))
    assert (tier.name, tier.capacity_bytes) == ("near", 300)


@pytest.mark.usefixtures("beside")
class TestMRU(PolicyLaws):
    policy = "mru"


def test_the_command_line_takes_it(installed: Path, tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    environment = {"PYTHONPATH": f"{Path(kvloft.__file__).parents[1]}:{installed}", "PATH": "/usr/bin:/bin"}
    for command in (
        ["synth", str(trace), "--requests", "60", "--mix", "chat=1", "--block-tokens", "512"],
        ["curve", str(trace), "--policy", "lru,mru", "--capacity", "100"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kvloft", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "mru" in done.stdout


@pytest.mark.usefixtures("beside")
def test_the_engine_side_takes_both():
    pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")
    from kvloft.vllm.policy import find_cache_policy

    assert find_cache_policy("mru")(10).policy.name == "mru"


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "tier.blocks: missing; ShelfTier needs it"),
        ({"blocks": 1, "block": 2}, "tier.block: unknown setting; did you mean blocks?"),
        ({"blocks": 1, "colour": 2}, "tier.colour: unknown setting; known are: blocks"),
    ],
)
def test_settings_that_a_tier_does_not_take_are_named(settings: dict[str, int], problem: str):
    with pytest.raises(ConfigError) as caught:
        read_tier({"type": "shelf", **settings})
    assert caught.value.problems == [problem]


def test_a_broken_plug_in_is_listed_and_named_by_its_distribution(offer, tmp_path: Path):
    (tmp_path / "broken_one.py").write_text("import no_such_module_at_all\n")
    offer("sad_policies", "kvloft.policies", "sad = broken_one:Sad")
    offer("sad_tiers", "kvloft.tiers", "sorry = broken_one:Sorry")
    assert "sad" in policy_names() and "sorry" in type_names()
    with pytest.raises(ConfigError) as caught:
        make_policy("sad", 10)
    assert str(caught.value) == (
        "policy 'sad' cannot be loaded from sad_policies 2.0 (broken_one:Sad): ModuleNotFoundError: "
        "No module named 'no_such_module_at_all'; mend or uninstall that distribution"
    )
    with pytest.raises(ConfigError) as caught:
        read_tier({"type": "sorry"}, "tiers[0]")
    assert str(caught.value).startswith("tiers[0].type: 'sorry' cannot be loaded from sad_tiers 2.0 (broken_one:Sorry): ")


def test_a_plug_in_that_ends_the_process_does_not(offer, tmp_path: Path):
    (tmp_path / "ends_all.py").write_text("raise SystemExit(3)\n")
    offer("ending_policies", "kvloft.policies", "ending = ends_all:Policy")
    with pytest.raises(ConfigError, match=r"'ending' cannot be loaded from ending_policies 2.0 .*SystemExit: 3"):
        make_policy("ending", 10)


def test_settings_say_it_before_an_engine_starts(offer):
    from kvloft.settings.spec import read_spec

    offer("absent_policies", "kvloft.policies", "absent = no_such_module:Policy")
    problems: list[str] = []
    read_spec({"cpu_bytes_to_use": "1GiB", "eviction_policy": "absent"}, problems)
    [problem] = problems
    assert problem.startswith("eviction_policy: policy 'absent' cannot be loaded from absent_policies 2.0 ")


def test_the_command_line_names_the_distribution(offer, tmp_path: Path):
    offer("absent_policies", "kvloft.policies", "absent = no_such_module:Policy")
    environment = {"PYTHONPATH": f"{Path(kvloft.__file__).parents[1]}:{tmp_path}", "PATH": "/usr/bin:/bin"}
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
    command = [sys.executable, "-m", "kvloft", "replay", str(trace), "--policy", "absent", "--capacity", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "absent_policies 2.0" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("odd = json:loads", "which is no class of kvloft's Policy"),
        ("odd = collections:OrderedDict", "no class of kvloft's"),
    ],
)
def test_what_is_no_policy_is_refused(offer, point: str, words: str):
    offer("odd_policies", "kvloft.policies", point)
    with pytest.raises(ConfigError, match=r"odd_policies 2\.0") as caught:
        load_policy("odd")
    assert words in str(caught.value)


def test_what_is_no_tier_is_refused(offer):
    offer("odd_tiers", "kvloft.tiers", "odd = collections:OrderedDict")
    with pytest.raises(ConfigError) as caught:
        read_tier({"type": "odd"})
    assert str(caught.value) == "tier.type: odd_tiers 2.0 (collections:OrderedDict) has no kvloft Tier class 'odd'"


def test_two_of_one_name_are_both_named_and_none_is_taken(offer):
    offer("first", "kvloft.policies", "twice = kvloft.policies.lru:LRU")
    offer("second", "kvloft.policies", "twice = kvloft.policies.fifo:FIFO")
    with pytest.raises(ConfigError) as caught:
        make_policy("twice", 10)
    assert str(caught.value) == (
        "policy 'twice' is offered by first 2.0 (kvloft.policies.lru:LRU) and by second 2.0 (kvloft.policies.fifo:FIFO); "
        "uninstall all but one"
    )


def test_names_of_kvloft_cannot_be_replaced(offer):
    offer("thief", "kvloft.policies", "lru = kvloft.policies.fifo:FIFO")
    assert make_policy("lru", 10).name == "lru"
    assert policy_names().count("lru") == 1
