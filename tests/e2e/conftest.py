"""Real vLLM engines, many in one process: `pytest.mark.xdist_group("engine")` keeps them in one worker."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from serving import MODELS, Serve, Served, serve_batches

from kvloft.vllm.engine import set_environment

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # Before any test module imports torch.
    set_environment()


@pytest.fixture(scope="session", autouse=True)
def light_engines() -> Iterator[None]:
    """vLLM freezes, unfreezes and collects the heap for every engine; with all of torch in it that takes two seconds."""
    gc.collect()
    gc.freeze()
    unfreeze, gc.unfreeze = gc.unfreeze, lambda: None
    yield
    gc.unfreeze = unfreeze
    gc.unfreeze()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: model.make(folder) for name, model in MODELS.items()}


@pytest.fixture(scope="session")
def serve(models: Mapping[str, Path]) -> Serve:
    """Serve batches of prompts, one batch after another, on an engine of its own."""
    return partial(serve_batches, models)


@pytest.fixture(scope="session")
def baseline(serve: Serve) -> Serve:
    """The same without offloading; each served once."""
    seen: dict[str, Served] = {}

    def remembered(model: str, batches: Sequence[Sequence[Sequence[int]]], **options: Any) -> Served:
        key = repr((model, batches, sorted(options.items())))
        if key not in seen:
            seen[key] = serve(model, batches, None, **options)
        return seen[key]

    return remembered
