"""Only one folder imports vLLM, imports are absolute, and the core needs neither torch nor vLLM. (That they point one way is
held with the diagram of them, in tests/docs/test_architecture.py.)"""

import ast
import subprocess
import sys
from pathlib import Path

import kvloft

SOURCE = Path(kvloft.__file__).parent


def test_imports_are_absolute():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.ImportFrom) or node.level == 0, f"{path}: relative import"


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
