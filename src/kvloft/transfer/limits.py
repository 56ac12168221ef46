"""What bounds the cascade: shares of host memory, deadlines, when to leave a tier alone."""

from dataclasses import dataclass, fields
from enum import StrEnum

from kvloft.errors import ConfigError


class Admission(StrEnum):
    """Which blocks are written to the tiers. Measured in docs/decisions/0003-admission-to-disk.md."""

    EVERYTHING = "everything"
    """Each block that was stored."""
    SECOND_USE = "second-use"
    """A block that is used again, or stored again after host memory lost it."""
    WRITE_BACK = "write-back"
    """A block about to leave host memory. A restart loses what was still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeConfig:
    """Bounds of a cascade. Times in seconds; shares are of the host memory's slots.

    At any time promotions take at most `promote_share`, demotions at most `demote_share`, so the rest is always there
    for running stores, whatever the tiers do.

    Args:
        admission: which blocks go down.
        pending_seconds: how long a request may be kept waiting, all its blocks together; then it gets what is ready.
        lookup_seconds: how long of that because tiers do not know yet what they have; then it counts as nothing.
        hang_seconds: a job is given up when the tier has answered none of its kind for so long, or that one for six times as
            long; its slots are set aside, and the tier is left alone.
        idle_seconds: blocks are no longer kept for a request that has not asked for so long.
        promote_share: slots for blocks on their way up and for those landed and kept for requests that wait.
        load_share: of them, slots that the tiers together may be writing into; a tier that hangs holds no more.
        demote_share: slots that the tiers together may be reading from.
        queue_share: blocks that may be waiting to go down, for each tier; more are dropped.
        clean_share: with write-back, slots that are kept free by writing blocks down ahead of need.
        ghost_share: with second use, keys remembered of blocks seen once, as a multiple of the slots.
        job_blocks: most blocks in one job.
        step_blocks: most blocks handed to one tier in one step, up and down each, so that no step takes long.
        block_tokens: tokens of a block.
        prefill_tokens_per_second: what the engine computes; None: as measured, and no tier is too slow until it is.
        probe_seconds: how often a tier slower than recomputing is measured again.
        breaker_failures: failed jobs in a row after which a tier is left alone.
        breaker_seconds: for how long at first; doubled as long as probes fail.
        breaker_longest_seconds: and at most.
        close_seconds: how long closing waits for the tiers.

    Raises:
        ConfigError: a value is out of its range.
    """

    admission: Admission = Admission.EVERYTHING
    pending_seconds: float = 10.0
    lookup_seconds: float = 1.0
    hang_seconds: float = 5.0
    idle_seconds: float = 5.0
    promote_share: float = 0.5
    load_share: float = 0.25
    demote_share: float = 0.125
    queue_share: float = 0.5
    clean_share: float = 0.0625
    ghost_share: float = 8.0
    job_blocks: int = 32
    step_blocks: int = 2048
    block_tokens: int = 16
    prefill_tokens_per_second: float | None = None
    probe_seconds: float = 5.0
    breaker_failures: int = 3
    breaker_seconds: float = 1.0
    breaker_longest_seconds: float = 60.0
    close_seconds: float = 5.0

    def __post_init__(self) -> None:
        problems = []
        try:
            object.__setattr__(self, "admission", Admission(self.admission))
        except ValueError:
            choices = ", ".join(Admission)
            problems.append(f"admission: {self.admission!r} is unknown; choose one of: {choices}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "admission" or (value is None and field.name == "prefill_tokens_per_second"):
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
                problems.append(f"{field.name}: {value!r} is not a number greater than 0")
            elif field.name in ("job_blocks", "step_blocks", "block_tokens", "breaker_failures") and value != int(value):
                problems.append(f"{field.name}: {value!r} is not a whole number")
        if not problems:
            problems += self._conflicts()
        if problems:
            raise ConfigError(problems)

    def _conflicts(self) -> list[str]:
        problems = []
        if self.promote_share + self.demote_share >= 1:
            problems.append(
                f"promote_share {self.promote_share} + demote_share {self.demote_share}: together they must leave room for "
                "running stores; give less than 1"
            )
        if self.load_share > self.promote_share:
            problems.append(
                f"load_share: {self.load_share} is part of promote_share {self.promote_share}; give no more than that"
            )
        if self.breaker_longest_seconds < self.breaker_seconds:
            problems.append(f"breaker_longest_seconds: {self.breaker_longest_seconds} is less than breaker_seconds")
        return problems


def slots_of(capacity: int, share: float, at_least: int = 1) -> int:
    """A share of the slots, rounded down but for `at_least`; one slot always remains for others."""
    return min(max(at_least, int(capacity * share)), capacity - 1)
