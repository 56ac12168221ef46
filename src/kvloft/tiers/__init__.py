"""Where bytes rest below host memory. The contract is in `base`; one file or folder a medium."""

from kvloft.tiers.base import Buffer, JobResult, Presence, Status, Tier, TierStats

__all__ = ["Buffer", "JobResult", "Presence", "Status", "Tier", "TierStats"]
