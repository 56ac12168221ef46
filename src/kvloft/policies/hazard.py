"""When blocks come back: reuse hazards by class and age, and the index that follows from them.

An age is a number of requests since a block's last use. Ages fall in bins that grow with them. For each class of blocks and
each bin, the hazard is the chance that a block that reaches the bin is used in it: the estimate of Kaplan and Meier,
"Nonparametric Estimation from Incomplete Observations", J. American Statistical Association 53(282), 1958, in which blocks
that left sight early count as long as they were seen.

With few observations a class is told apart by one number only, how much more often than the average its blocks are used;
with many, by the shape of its hazard as well.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]
"""One value a class and bin, [classes, bins]."""

EDGES: tuple[int, ...] = (1, 2, 4, 8, 16, 32, *(round(2 ** (half / 2)) for half in range(11, 32)))
"""Ages at which the bins end, but for the last one, which has no end."""
BINS = len(EDGES) + 1


class Hazards:
    """Learns hazards and ranks classes and bins by index.

    Args:
        classes: how many classes of blocks there are.
    """

    PRIOR = 0.06
    """Hazard of each doubling of age before anything is seen. That is LRU: older blocks have lower indices."""
    COLD = 100.0
    """Observations (of segments) by which the average hazard outweighs the prior."""
    SCALE = 10.0
    """Reuses by which a class outweighs the average in how often it is used."""
    SHAPE = 100.0
    """Observations by which a class outweighs the average in the shape of its hazard."""
    DECAY = 0.95
    """What is left of an observation after each `refresh`."""

    def __init__(self, classes: int) -> None:
        self._reused: Table = np.zeros((classes, BINS))
        self._survived: Table = np.zeros((classes, BINS))
        self._observed: Table = np.zeros((classes, BINS))
        self._tables = (self._reused, self._survived, self._observed)
        self.index: Table = np.zeros((classes, BINS))
        """Expected hits a block and request of residence, if it is kept for as long as that is best."""
        self.ever: NDArray[np.float64] = np.zeros(classes)
        """The chance that a block is used again at all, [classes]."""
        self.refresh()

    def observe(self, counts: bytes) -> None:
        """What `kvloft._table.Uses` has counted."""
        for table, news in zip(self._tables, np.frombuffer(counts, np.int64).reshape(3, *self.index.shape), strict=True):
            table += news

    def refresh(self) -> None:
        """Bring `index` up to date, and let what was observed fade."""
        hazard = self._hazard()
        hazard[:, 1:-1] = (hazard[:, :-2] + 2 * hazard[:, 1:-1] + hazard[:, 2:]) / 4
        self.index = _index(hazard)
        self.ever = 1 - np.prod(1 - hazard, axis=1)
        for table in self._tables:
            table *= self.DECAY

    def _hazard(self) -> Table:
        """Estimates: a class shrunk to a multiple of the average, the multiple towards one, the average to the prior."""
        at_risk = self._reused + self._survived
        seen = self._observed.sum(axis=0)
        average = (seen * _ratio(self._reused.sum(axis=0), at_risk.sum(axis=0)) + self.COLD * self.PRIOR * _DOUBLINGS) / (
            seen + self.COLD
        )
        blocks_each = np.maximum(_ratio(at_risk.sum(axis=1), self._observed.sum(axis=1)), 1.0)
        happened = self._reused.sum(axis=1) / blocks_each
        expected = (at_risk * average).sum(axis=1) / blocks_each
        multiple = (happened + self.SCALE) / (expected + self.SCALE)
        typical = np.minimum(multiple[:, None] * average, 0.9)
        shrunk: Table = (self._observed * _ratio(self._reused, at_risk) + self.SHAPE * typical) / (
            self._observed + self.SHAPE
        )
        return shrunk


def _ratio(part: Table, whole: Table) -> Table:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


_ENDS = np.array([1, *EDGES, EDGES[-1] * 2**0.5])
_DOUBLINGS = np.log2(np.maximum(_ENDS[1:], 2) / _ENDS[:-1])
_WIDTHS = np.diff(np.array([0, *EDGES, EDGES[-1] * 2**0.5]))
_LATER = np.triu(np.ones((BINS, BINS), bool))


def _index(hazard: Table) -> Table:
    """The best ratio of expected hits to expected residence over all ages at which a block could be given up, after Gittins,
    "Bandit Processes and Dynamic Allocation Indices", J. Royal Statistical Society B 41(2), 1979."""
    alive = np.cumprod(np.hstack([np.ones((len(hazard), 1)), 1 - hazard]), axis=1)
    lived = np.cumsum(np.hstack([np.zeros((len(hazard), 1)), (alive[:, :-1] + alive[:, 1:]) / 2 * _WIDTHS]), axis=1)
    hits = alive[:, :-1, None] - alive[:, None, 1:]
    residence = lived[:, None, 1:] - lived[:, :-1, None]
    index: Table = np.divide(hits, residence, out=np.zeros_like(hits), where=_LATER).max(axis=2)
    return index
