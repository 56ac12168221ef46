"""Configurations and requests that pages show, read as vLLM and kvloft read them."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvloft.policies.hints import read_hints
from kvloft.sim.cost import read_prices
from kvloft.tiers.settings import read_tier

HAS_VLLM = find_spec("vllm") is not None
"""Where it is missing, its own part of a check is left out."""
GROUPS = {"kvloft.policies", "kvloft.tiers"}


def check_json(text: str) -> None:
    """One object of JSON, by what it says that it is."""
    given = json.loads(text)
    if "kv_connector" in given:
        check_transfer(given)
    elif "spec_name" in given:
        check_settings(given)
    elif "type" in given:
        read_tier(given)
    elif "Rules" in given:  # an S3 lifecycle, whose reader is not to be had: its names are Amazon's
        [rule] = given["Rules"]
        assert {"ID", "Status", "Filter", "Expiration"} == rule.keys()
    else:
        pytest.fail(f"nothing is known that reads {sorted(given)}")


def check_toml(text: str, folder: Path) -> None:
    """Prices, or the metadata of a plug-in, which is then installed in `folder`."""
    given = tomllib.loads(text)
    if "project" in given:
        install_metadata(given["project"], folder)
    else:
        file = folder / "checked.toml"
        file.write_text(text)
        read_prices(file)


def check_yaml(text: str) -> None:
    """Values of a chart, with a transfer configuration in them, or a patch of a deployment, with the volumes it mounts."""
    given = yaml.safe_load(text)
    if "spec" in given:
        pod = given["spec"]["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        return
    configs = [value for value in _strings(given) if '"kv_connector"' in value]
    assert configs
    for config in configs:
        check_json(config)


def check_dockerfile(text: str) -> None:
    """Instructions that Docker knows, on an image of a version of vLLM that is supported."""
    from kvloft.vllm.versions import parse_release

    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= {"FROM", "COPY", "RUN"}
    [image] = [line.split()[1] for line in lines if line.startswith("FROM")]
    name, _, tag = image.partition(":")
    assert name == "vllm/vllm-openai"
    parse_release(tag)


def check_serve(arguments: list[str]) -> None:
    """A command line of `vllm serve`, read by vLLM's own parser."""
    if not HAS_VLLM:
        return
    given = vars(_serve_parser().parse_args(arguments))
    config = given["kv_transfer_config"]
    assert config is not None
    check_settings(config.kv_connector_extra_config)


def check_transfer(given: dict[str, Any]) -> None:
    """What `--kv-transfer-config` takes."""
    if HAS_VLLM:
        from vllm.config import KVTransferConfig

        KVTransferConfig(**given)
    check_settings(given["kv_connector_extra_config"])


def check_settings(given: dict[str, Any]) -> None:
    """`kv_connector_extra_config`, as the spec that it names reads it."""
    if not HAS_VLLM:
        return
    if given.get("spec_name") == "KvloftSpec":
        assert given["spec_module_path"] == "kvloft.vllm"
        _spec(given)
    else:
        import kvloft.vllm

        assert isinstance(given["cpu_bytes_to_use"], int), "vLLM's own spec takes numbers only"
        assert given["cache_policy_module_path"] == "kvloft.vllm"
        getattr(kvloft.vllm, given["eviction_policy"])


def check_request(given: dict[str, Any], url: str) -> None:
    """The body of a request to vLLM's server, and its hints."""
    transfer = given["kv_transfer_params"]
    assert not read_hints(transfer["kvloft"]).problems
    if HAS_VLLM:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        kind = ChatCompletionRequest if url.endswith("/chat/completions") else CompletionRequest
        assert kind.model_validate(given).kv_transfer_params == transfer


def install_metadata(project: dict[str, Any], folder: Path) -> None:
    """Make a distribution with this project's entry points findable in a folder of sys.path."""
    groups = project["entry-points"]
    assert groups.keys() == GROUPS
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [line for group, points in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    importlib.invalidate_caches()
    assert {point.name for group in groups for point in importlib.metadata.entry_points(group=group)} >= {
        name for points in groups.values() for name in points
    }


@cache
def options_of(program: str) -> frozenset[str]:
    """The options of a program that is installed with the package of this environment; skips where it is not."""
    found = shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{program} is not installed")
    said = subprocess.run([found, "--help"], capture_output=True, text=True, check=False)
    return frozenset(re.findall(r"^ +-(\w+) \(", said.stdout + said.stderr, re.M))


@cache
def _serve_parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def _spec(settings: dict[str, Any]) -> None:
    from kvloft.vllm import KvloftSpec
    from offloading import offloading_config

    KvloftSpec(offloading_config(settings, 1 << 20, blocks_per_chunk=settings.get("blocks_per_chunk", 1)))


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in _strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []
