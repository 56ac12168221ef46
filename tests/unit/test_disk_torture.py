"""A short torture; the long one is `python tests/disk_torture.py 200`."""

from pathlib import Path

import pytest

from disk_torture import ROOMY, TIGHT, torture


@pytest.mark.parametrize(("processes", "capacity"), [(1, ROOMY), (1, TIGHT), (2, ROOMY), (2, TIGHT)])
def test_killed_processes_leave_no_wrong_and_lose_no_committed_block(tmp_path: Path, processes: int, capacity: int) -> None:
    tally = torture(tmp_path, 3, processes=processes, capacity=capacity, seed=processes + capacity)
    assert tally["committed"] and tally["survivors"]
