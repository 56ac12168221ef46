"""Segments whose use is watched."""

from typing import Self

from kvloft._table import AgedRun
from kvloft.policies.chains import Segment

STAGES = (8, 16)
"""Bins of ages that begin a stage, but for the first: within a stage an index counts as never rising with age."""


class AgedSegment(AgedRun, Segment):
    """A segment and what is known of its use."""

    __slots__ = ()
    FIELDS = (*Segment.FIELDS, "kind", "last", "use", "stamp", "reads", "turn", "ends", "committed", "origin")
    FIELDS += ("branches", "branches_reused")

    def inherit(self, whole: Self) -> None:
        super().inherit(whole)
        self.kind, self.last, self.stamp, self.reads = whole.kind, whole.last, whole.stamp, whole.reads
        self.turn, self.committed, self.origin = whole.turn, whole.committed, whole.origin
        self.ends = whole.ends and whole.size <= 1
