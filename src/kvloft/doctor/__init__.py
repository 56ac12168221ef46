"""What will go wrong on this machine, before it does."""

from collections.abc import Callable, Iterator
from pathlib import Path

from kvloft.doctor import machine, media
from kvloft.doctor.findings import Disk, Finding, Harm, Plan

__all__ = ["Disk", "Finding", "Harm", "Plan", "examine"]


def examine(plan: Plan, root: Path = Path("/")) -> list[Finding]:
    """Look at everything; the worst comes first.

    Args:
        plan: what is meant to run.
        root: where /proc, /sys and /dev are; another folder only for tests.
    """
    checks: tuple[Callable[[Plan, Path], Iterator[Finding]], ...] = (
        machine.vllm,
        machine.platform,
        machine.memory,
        machine.shared_memory,
        media.disks,
        media.stores,
        machine.leftovers,
        machine.memlock,
        machine.huge_pages,
        machine.numa,
        machine.clock,
    )
    findings = [finding for check in checks for finding in check(plan, root)]
    return sorted(findings, key=lambda finding: -finding.harm)
