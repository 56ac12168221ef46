"""What LRU would have had: the yardstick of policies that want to be no worse."""

from collections import OrderedDict
from collections.abc import Sequence


class ShadowLRU:
    """An LRU cache of segments, of which it knows only the sizes. It loses blocks from the tail of its oldest segment.

    Args:
        capacity: in blocks.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._total = 0

    def use(self, chain: Sequence[tuple[int, int]]) -> int:
        """Segments and their sizes, tail to head, become the most recent ones; how many of their blocks were there."""
        had = 0
        chain = [*dict(chain).items()]  # a chain may come back to a segment
        for segment, blocks in chain:
            was = self._blocks.pop(segment, 0)
            self._total += blocks - was
            had += min(was, blocks)
        self._blocks.update(chain)
        while self._total > self._capacity:
            oldest, size = self._blocks.popitem(last=False)
            left = size - (self._total - self._capacity)
            self._total -= size
            if left > 0:
                self._blocks[oldest] = left
                self._blocks.move_to_end(oldest, last=False)
                self._total += left
        return had

    def split(self, segment: int, at: int, head: int | None = None, tail: int | None = None) -> None:
        """The first `at` blocks of a segment, or those behind them, have another name from now on, and the same age."""
        had = self._blocks.pop(segment, 0)
        names = (segment if head is None else head, segment if tail is None else tail)
        for name, blocks in zip(names, (min(had, at), had - min(had, at)), strict=True):
            if blocks:
                self._blocks[name] = blocks
                self._blocks.move_to_end(name, last=False)

    def forget(self, segment: int) -> None:
        """The segment will not be asked for again under this number."""
        self._total -= self._blocks.pop(segment, 0)


class Rival:
    """LRU beside us: what it would have hit, and whether we had better do as it does.

    Args:
        capacity: in blocks.
    """

    PERIOD = 64
    """Requests between judgements."""
    FADE = 0.9
    """What is left of the past at each."""
    MARGIN = 0.003
    """Lost hits by blocks asked for from which LRU leads."""
    REST = 8
    """Judgements for which it then leads; twice as many each time it is found to."""

    def __init__(self, capacity: int) -> None:
        self.leads = False
        self.shadow = ShadowLRU(capacity)
        self._gain = self._asked = 0.0
        self._rest = self.REST
        self._left = 0

    def count(self, ours: int, its: int, asked: int) -> None:
        """Blocks that we hit, that LRU would have hit, and that were asked for."""
        self._gain += ours - its
        self._asked += asked

    def judge(self, clock: int) -> bool:
        """Whether the lead changed hands."""
        if clock % self.PERIOD:
            return False
        self._gain *= self.FADE
        self._asked *= self.FADE
        if self.leads:
            self._left -= 1
            if not self._left:
                self.leads = False
                self._gain = 0.0
                return True
        elif self._gain < -self.MARGIN * self._asked:
            self.leads = True
            self._left, self._rest = self._rest, 2 * self._rest
            return True
        return False
