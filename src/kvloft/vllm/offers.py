"""What vLLM offers for storing: in which order, and how often."""

from collections import OrderedDict
from collections.abc import Sequence

from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from kvloft.vllm.compat import positions_of


def by_position(offered: list[OffloadKey], context: ReqContext) -> list[OffloadKey]:
    """An offer in the order of its chain: vLLM names one KV group after the other, but a position is of use only with the
    chunks of all groups. The offer itself where it is of one group."""
    if not offered or offered[0][-4:] == offered[-1][-4:]:
        return offered
    positions = positions_of(context)
    return sorted(offered, key=lambda key: positions.get(key, 0))


class OfferCounter:
    """Counts how often each chunk was offered for storing, for the `size` chunks offered last."""

    def __init__(self, threshold: int, size: int) -> None:
        self._threshold = threshold
        self._size = size
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def count(self, offered: Sequence[OffloadKey]) -> None:
        """Count one offer of distinct chunks. None of them is forgotten for another of the same offer."""
        counts = self._counts
        new = [key for key in offered if key not in counts]
        for key in offered:
            if key in counts:
                counts[key] += 1
                counts.move_to_end(key)
        room = self._size - (len(offered) - len(new))
        for key in new[: max(room, 0)]:
            if len(counts) >= self._size:
                counts.popitem(last=False)
            counts[key] = 1

    def suffice(self, key: OffloadKey) -> bool:
        """Whether the chunk was offered often enough to be stored."""
        return self._counts.get(key, 0) >= self._threshold
