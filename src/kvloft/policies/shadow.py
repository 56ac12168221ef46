"""What LRU would have had: the yardstick of policies that want to be no worse."""

from array import array
from collections.abc import Iterable

NEVER = 0
"""The use of blocks that have not been used yet."""


class ShadowLRU:
    """An LRU cache of the same size beside ours, and how far the two are apart.

    A use is a chain of blocks that a request used; uses are numbered. What has not been used since is the end of such a
    chain, so one number a use says what LRU still has of it, and another what we have: both lose its tail first.

    Args:
        capacity: in blocks.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._has = array("q")
        """By use, from the oldest of which LRU has anything: the blocks that LRU has, ..."""
        self._ours = array("q")
        """... and those that we have, if it was not longer ago."""
        self._base = NEVER + 1
        """The number of the use that comes first in the arrays."""
        self._first = 0
        """The place in them of the oldest use of which LRU has anything."""
        self._total = 0
        self.apart = 0
        """Blocks that LRU has and we do not."""
        self.missed = 0.0
        """Of those that it had and we did not, how many were used, ..."""
        self.spared = 0.0
        """... and how many it has lost unused, later than we."""
        self._fresh: dict[int, int] = {}
        """By use: blocks that we have lost since the latest one. At the next, LRU may lose the same."""

    def use(self, chain: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
        """Runs of blocks are used, from the head of their chain to its tail.

        Args:
            chain: of each run its latest use, its blocks, and how many of them we have now.

        Returns:
            How many of them LRU had, and the number of this use.
        """
        had = asked = ours = 0
        for use, blocks, kept in chain:
            asked += blocks
            ours += kept
            at = use - self._base
            if at >= self._first:
                found = min(blocks, self._has[at])
                had += found
                self._change(at, -found, -kept)
        self._has.append(asked)
        self._ours.append(ours)
        self.apart += asked - ours
        self._total += asked - had
        if self._total > self._capacity:
            self._shrink()
        self._fresh.clear()
        return had, self._base + len(self._has) - 1

    def lose(self, use: int, blocks: int) -> None:
        """We lost so many of the blocks that were used last by this use."""
        if use - self._base >= self._first:
            self._fresh[use] = self._fresh.get(use, 0) + blocks
            self._change(use - self._base, 0, -blocks)

    def lacking(self, use: int, more: int) -> int:
        """How many of the blocks that were used last by this use LRU has and we do not, once we lost so many more."""
        at = use - self._base
        return max(0, self._has[at] - self._ours[at] + more) if at >= self._first else 0

    def regain(self, use: int, blocks: int) -> None:
        """We have them again, because they were asked for."""
        apart = self.apart
        self._change(use - self._base, 0, blocks)
        self.missed += apart - self.apart

    def forget(self, use: int, blocks: int, ours: int) -> None:
        """Blocks that nobody will ask for, or nobody would know if they did; so many of them we had."""
        at = use - self._base
        if at >= self._first:
            gone = min(blocks, self._has[at])
            self._total -= gone
            self._change(at, -gone, -ours)

    def remember(self, blocks: float) -> None:
        """What was seen of more blocks than this fades."""
        known = self.missed + self.spared
        if known > blocks:
            self.missed *= blocks / known
            self.spared *= blocks / known

    def _change(self, at: int, its: int, ours: int) -> None:
        if at >= self._first:
            self.apart -= max(0, self._has[at] - self._ours[at])
            self._has[at] += its
            self._ours[at] += ours
            self.apart += max(0, self._has[at] - self._ours[at])

    def _shrink(self) -> None:
        """LRU loses its oldest blocks, tails first."""
        at, over = self._first, self._total - self._capacity
        while over:
            gone = min(over, self._has[at])
            apart = self.apart
            self._change(at, -gone, 0)
            self.spared += max(0, apart - self.apart - self._fresh.get(self._base + at, 0))
            over -= gone
            if over:
                at += 1
                self._first = at
        self._total = self._capacity
        if at > 4096 and 2 * at > len(self._has):
            del self._has[:at], self._ours[:at]
            self._base += at
            self._first = 0


class Rival:
    """LRU beside us, and how far from it we may go.

    At any time we could do as LRU does, and would from then on miss at most what it has and we do not. So we may lose what
    LRU keeps only as long as what we are ahead of it, and a small allowance, pay for it: for the part of all such blocks
    that is likely to be missed, and for all that one request used, which may well come back together.

    Args:
        capacity: in blocks.
    """

    ALLOWANCE = 0.0007
    """Lost hits by blocks asked for that are not minded, ..."""
    GRANT = 1.0
    """... and those that are not minded in addition, in requests of average length."""
    CREDIT = 1.0
    """Hits ahead that count, in capacities."""
    LEAST = 0.05
    """Of all blocks lost that LRU has, at least this part has to be paid for, ..."""
    SAFETY = 2.0
    """... and so many times the part that was missed lately."""
    DOUBT = 0.5
    """Requests, all of whose blocks were missed, that are added to what was seen."""
    MEMORY = 1.0
    """How much of what was seen is remembered: blocks, in capacities."""

    def __init__(self, capacity: int) -> None:
        self.shadow = ShadowLRU(capacity)
        self._capacity = capacity
        self._credit = 0.0
        self._asked = self._requests = 1

    def count(self, ours: int, its: int, asked: int) -> None:
        """Blocks that a request hit, that LRU would have hit, and that were asked for."""
        self._credit = min(self._credit + ours - its + self.ALLOWANCE * asked, self.CREDIT * self._capacity)
        self._asked += asked
        self._requests += 1
        self.shadow.remember(self.MEMORY * self._capacity)

    def lets(self, use: int, blocks: int) -> bool:
        """Whether we may lose so many more of the blocks last used by this use, even if LRU would not."""
        lacking = self.shadow.lacking(use, blocks)
        return not lacking or self.affords(lacking, blocks)

    def affords(self, lacking: int, more: int) -> bool:
        """Whether we may lose `more` blocks that LRU has, after which so many of those that one request used are lacking."""
        shadow, usual = self.shadow, self._asked / self._requests
        missed = shadow.missed + self.DOUBT * usual
        risk = min(1.0, max(self.LEAST, self.SAFETY * missed / (missed + shadow.spared)))
        return max(lacking, risk * (shadow.apart + more)) <= self._credit + self.GRANT * usual
