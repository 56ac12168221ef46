"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with public traces for development; not part of the repository."""
    folder = Path(os.environ.get("KVLOFT_SHARED", ROOT.parent / "shared"))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no public traces in {folder}; set KVLOFT_SHARED")
    return folder
