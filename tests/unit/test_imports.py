"""Imports point one way, and the core needs neither torch nor vLLM."""

import ast
import subprocess
import sys
from pathlib import Path

import kvloft

SOURCE = Path(kvloft.__file__).parent

LAYERS = {
    "errors": 0,
    "metric_names": 0,
    "files": 1,
    "plugins": 1,
    "model_config": 1,
    "keys": 1,
    "request": 0,
    "config": 0,
    "fields": 1,
    "geometry": 2,
    "telemetry": 1,
    "tracing": 1,
    "troubles": 0,
    "policies": 2,
    "pool": 3,
    "tiers": 3,
    "transfer": 4,
    "traces": 4,
    "settings": 5,
    "sim": 5,
    "vllm": 6,
    "report": 6,
    "watch": 6,
    "doctor": 7,
    "testing": 7,
    "cli": 8,
}
"""A module imports from lower layers and from its own folder."""


def imports(path: Path) -> set[str]:
    """kvloft's packages that a file imports, deferred imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "kvloft" else [f"kvloft.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("kvloft.")}
    return found


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own in ("__init__", "__main__"):
            continue
        for other in imports(path) & LAYERS.keys() - {own}:
            assert LAYERS[other] < LAYERS[own], f"{path.relative_to(SOURCE)} imports kvloft.{other}"


def test_every_package_has_its_layer():
    packages = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert packages - {"__init__", "__main__"} <= LAYERS.keys()


def test_only_the_vllm_folder_imports_vllm():
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] == "vllm":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name == "vllm" or name.startswith("vllm.") for name in names), path


def test_the_core_loads_neither_torch_nor_vllm():
    code = (
        "import sys, kvloft, kvloft.pool, kvloft.policies, kvloft.tiers.base, kvloft.cli;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'hypothesis', 'pytest')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
