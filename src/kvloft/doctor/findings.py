"""What a check of the doctor says."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from kvloft.tiers.settings import TierPlan


class Harm(IntEnum):
    """How bad a finding is; findings are told worst first."""

    BROKEN = 3
    """It will not work, or will stop working."""
    SLOW = 2
    """It will work, but not as well as it could."""
    NOTE = 1
    """Good to know."""
    FINE = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        check: what was looked at.
        harm: how bad it is.
        found: what there is, in words and numbers.
        fix: a command or a setting that mends it; empty if nothing needs mending.
    """

    check: str
    harm: Harm
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk tier that is meant to run here.

    Args:
        path: its folder.
        capacity: its size in bytes; None if not decided.
    """

    path: Path
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is meant to run here. Sizes in bytes.

    Args:
        host: host memory for blocks; None if not decided.
        disks: disk tiers.
        stores: shared stores.
        cuda: whether vLLM's own worker and shared region are used (GPUs), or kvloft's (the CPU platform).
        prefill: tokens a second that the engine computes; None if not known.
        bytes_per_token: of the model's KV cache; None if not known.
        probe: bytes to write and read in each folder, to see how fast it is; 0 for none.
    """

    host: int | None = None
    disks: Sequence[Disk] = ()
    stores: Sequence[TierPlan] = ()
    cuda: bool = False
    prefill: float | None = None
    bytes_per_token: float | None = None
    probe: int = 0
