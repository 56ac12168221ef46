"""What LRU would have had: the yardstick of policies that want to be no worse."""

from kvloft._table import AgedRun, ShadowLRU

NEVER = 0
"""The `stamp` of a segment that was not used yet."""


class Rival:
    """LRU beside us, and how far from it we may go.

    At any time we could do as LRU does, and would from then on miss at most what it has and we do not. So we may lose what
    LRU keeps only as long as what we are ahead of it, and a small allowance, pay for it: for the part of all such blocks
    that is likely to be missed, and for all that one request used, which may well come back together.

    Args:
        capacity: in blocks.
    """

    ALLOWANCE = 0.0005
    """Lost hits by blocks asked for that are not minded, ..."""
    GRANT = 0.7
    """... and those that are not minded in addition, in requests of average length."""
    CREDIT = 1.0
    """Hits ahead that count, in capacities."""
    LEAST = 0.05
    """Of all blocks lost that LRU has, at least this part has to be paid for, ..."""
    SAFETY = 3.0
    """... and so many times the part that was missed lately."""
    DOUBT = 0.5
    """Requests, all of whose blocks were missed, that are added to what was seen."""
    MEMORY = 1.0
    """How much of what was seen is remembered: blocks, in capacities."""

    def __init__(self, capacity: int) -> None:
        self.shadow = ShadowLRU(capacity)
        self._most, self._memory = self.CREDIT * capacity, self.MEMORY * capacity
        self._credit = 0.0
        self._asked = self._requests = 1
        self._weigh()

    def count(self, ours: int, its: int, asked: int) -> None:
        """Blocks that a request hit, that LRU would have hit, and that were asked for."""
        self._credit = min(self._credit + ours - its + self.ALLOWANCE * asked, self._most)
        self._asked += asked
        self._requests += 1
        self.shadow.remember(self._memory)
        self._weigh()

    def regain(self, segment: AgedRun, blocks: int) -> None:
        """We have so many of the blocks again that we lost, because they were asked for."""
        self.shadow.regain(segment, blocks)
        self._weigh()

    def lets(self, segment: AgedRun, blocks: int) -> bool:
        """Whether we may lose so many more of a segment's blocks, even if LRU would not."""
        lacking = self.shadow.lacking(segment, blocks)
        return not lacking or self.affords(lacking, blocks)

    def affords(self, lacking: int, more: int) -> bool:
        """Whether we may lose `more` blocks that LRU has, after which so many of those that one request used are lacking."""
        return max(lacking, self._risk * (self.shadow.apart + more)) <= self._purse

    def _weigh(self) -> None:
        usual = self._asked / self._requests
        missed = self.shadow.missed + self.DOUBT * usual
        self._risk = min(1.0, max(self.LEAST, self.SAFETY * missed / (missed + self.shadow.spared)))
        """The part of what LRU has and we do not that has to be paid for, ..."""
        self._purse = self._credit + self.GRANT * usual
        """... and what we can pay, in blocks."""
