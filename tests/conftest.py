"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# HYPOTHESIS_PROFILE=thorough looks ten times as long.
settings.register_profile("default", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with public traces for development; not part of the repository."""
    folder = Path(os.environ.get("KVLOFT_SHARED", ROOT.parent / "shared"))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no public traces in {folder}; set KVLOFT_SHARED")
    return folder
