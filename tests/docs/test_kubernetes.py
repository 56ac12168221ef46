"""Examples for Kubernetes: host memory fits into what the pod is given."""

import json
from pathlib import Path

import yaml
from doc_configs import HAS_VLLM, check_serve

from kvloft.config import parse_size

FOLDER = Path(__file__).parents[2] / "examples/kubernetes"


def read(name: str):
    return yaml.safe_load((FOLDER / name).read_text())


def host_memory(arguments: list[str]) -> int:
    config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    return parse_size(config["kv_connector_extra_config"]["cpu_bytes_to_use"])


def test_production_stack():
    """Names that the chart requires are there; /dev/shm is mounted and holds the blocks; so does the pod's memory."""
    [model] = read("production-stack.yaml")["servingEngineSpec"]["modelSpec"]
    required = "name repository tag modelURL replicaCount requestCPU requestMemory requestGPU pvcStorage"
    assert {*required.split()} <= model.keys()
    arguments = model["vllmConfig"]["extraArgs"]
    size, shm = host_memory(arguments), parse_size(model["shmSize"])
    assert "tensorParallelSize" in model["vllmConfig"], "without it the chart mounts no /dev/shm"
    assert size < shm < parse_size(model["requestMemory"]) == parse_size(model["limitMemory"])
    tiers = json.loads(arguments[1])["kv_connector_extra_config"]["tiers"]
    [disk] = [tier["path"] for tier in tiers if tier["type"] == "disk"]
    assert disk in [mount["mountPath"] for mount in model["extraVolumeMounts"]]
    if HAS_VLLM:
        check_serve([model["modelURL"], *arguments])


def test_chart_of_vllm():
    values, patch = read("vllm-chart.yaml"), read("vllm-chart-shm.yaml")["spec"]["template"]["spec"]
    command = values["image"]["command"]
    [shm] = [volume["emptyDir"]["sizeLimit"] for volume in patch["volumes"]]
    assert host_memory(command) < parse_size(shm) < parse_size(values["resources"]["limits"]["memory"])
    assert command[:2] == ["vllm", "serve"]
    check_serve(command[2:])
