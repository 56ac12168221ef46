"""What bounds the cascade: shares of host memory, deadlines, when to leave a tier alone."""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from kvloft.errors import ConfigError
from kvloft.fields import COUNT, NUMBER, Field, Kind, choice


class Admission(StrEnum):
    """Which blocks are written to the tiers. Measured in docs/decisions/0003-admission-to-disk.md."""

    EVERYTHING = "everything"
    """Each block that was stored."""
    SECOND_USE = "second-use"
    """A block that is used again, or stored again after host memory lost it."""
    WRITE_BACK = "write-back"
    """A block about to leave host memory. A restart loses what was still there."""


_GOES_DOWN = (
    "Which blocks go down to the tiers: each that was stored, those used a second time, or those about to leave host memory "
    "(then a restart loses what was still there)."
)


def _meant(kind: Kind, meaning: str) -> dict[str, Any]:
    return {"kind": kind, "meaning": meaning}


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeConfig:
    """Bounds of a cascade. Times in seconds; shares are of the host memory's slots.

    At any time promotions take at most `promote_share`, demotions at most `demote_share`, so the rest is always there
    for running stores, whatever the tiers do.

    Args:
        block_tokens: tokens of a block.

    What the others mean is said where they stand, for `cascade_fields` tells it on.

    Raises:
        ConfigError: a value is out of its range.
    """

    admission: Admission = field(default=Admission.EVERYTHING, metadata=_meant(choice(*Admission), _GOES_DOWN))
    pending_seconds: float = field(
        default=10.0,
        metadata=_meant(
            NUMBER, "How long a request may be kept waiting, all its blocks together; then it gets what is ready."
        ),
    )
    lookup_seconds: float = field(
        default=1.0,
        metadata=_meant(NUMBER, "How long of that because tiers do not know yet what they have; then it counts as nothing."),
    )
    hang_seconds: float = field(
        default=5.0,
        metadata=_meant(
            NUMBER,
            "A job is given up when the tier has answered none of its kind for so long, or that one for six times as long; "
            "its slots are set aside, and the tier is left alone.",
        ),
    )
    idle_seconds: float = field(
        default=5.0, metadata=_meant(NUMBER, "Blocks are no longer kept for a request that has not asked for so long.")
    )
    promote_share: float = field(
        default=0.5,
        metadata=_meant(NUMBER, "Slots for blocks on their way up and for those landed and kept for requests that wait."),
    )
    load_share: float = field(
        default=0.25,
        metadata=_meant(
            NUMBER, "Of them, slots that the tiers together may be writing into; a tier that hangs holds no more."
        ),
    )
    demote_share: float = field(default=0.125, metadata=_meant(NUMBER, "Slots that the tiers together may be reading from."))
    queue_share: float = field(
        default=0.5, metadata=_meant(NUMBER, "Blocks that may wait to go down, for each tier; more are dropped.")
    )
    clean_share: float = field(
        default=0.0625,
        metadata=_meant(NUMBER, "With write-back, slots that are kept free by writing blocks down ahead of need."),
    )
    ghost_share: float = field(
        default=8.0,
        metadata=_meant(NUMBER, "With second use, keys remembered of blocks seen once, as a multiple of the slots."),
    )
    job_blocks: int = field(default=32, metadata=_meant(COUNT, "Most blocks in one job."))
    step_blocks: int = field(
        default=2048,
        metadata=_meant(COUNT, "Most blocks handed to one tier in one step, up and down each, so that no step takes long."),
    )
    block_tokens: int = 16
    prefill_tokens_per_second: float | None = field(
        default=None,
        metadata=_meant(NUMBER, "What the engine computes. By default as measured, and no tier is too slow until it is."),
    )
    probe_seconds: float = field(
        default=5.0, metadata=_meant(NUMBER, "How often a tier slower than recomputing is measured again.")
    )
    breaker_failures: int = field(
        default=3, metadata=_meant(COUNT, "Failed jobs in a row after which a tier is left alone.")
    )
    breaker_seconds: float = field(
        default=1.0, metadata=_meant(NUMBER, "For how long at first; doubled as long as probes fail.")
    )
    breaker_longest_seconds: float = field(default=60.0, metadata=_meant(NUMBER, "And at most."))
    close_seconds: float = field(default=5.0, metadata=_meant(NUMBER, "How long closing waits for the tiers."))

    def __post_init__(self) -> None:
        problems = []
        for setting in cascade_fields():
            value = getattr(self, setting.name)
            if value is None and setting.default is None:
                continue
            try:
                setting.kind.read(value)
            except ValueError as error:
                problems.append(f"{setting.name}: {error}")
        if not problems:
            object.__setattr__(self, "admission", Admission(self.admission))
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


def cascade_fields() -> list[Field]:
    """What settings may say of a cascade. What a block is, the engine knows."""
    return [
        Field(bound.name, bound.metadata["kind"], bound.metadata["meaning"], bound.default)
        for bound in fields(CascadeConfig)
        if bound.metadata
    ]


def slots_of(capacity: int, share: float, at_least: int = 1) -> int:
    """A share of the slots, rounded down but for `at_least`; one slot always remains for others."""
    return min(max(at_least, int(capacity * share)), capacity - 1)


def slots_each(capacity: int, share: float, parts: int) -> list[int]:
    """A share of the slots among so many tiers, as even as may be; at least one for each, as far as there are any."""
    slots = slots_of(capacity, share, parts)
    return [slots // parts + (part < slots % parts) for part in range(parts)]
