"""A queue of blocks that is changed by the batch."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import filterfalse, islice

from kvloft.request import Key


class Queue:
    """Distinct keys from the least to the most recent. No method runs Python code for each key of a batch."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[Key, None] = OrderedDict()

    @property
    def holds(self) -> Callable[[object], bool]:
        """What `in` asks, to be mapped over a batch."""
        return self._keys.__contains__

    def add(self, keys: Iterable[Key]) -> None:
        """Put keys that are not in at the recent end, the last one last."""
        self._keys.update(dict.fromkeys(keys))

    def touch(self, keys: Iterable[Key]) -> None:
        """Move keys that are in to the recent end, the last one last."""
        deque(map(self._keys.move_to_end, keys), maxlen=0)

    def remove(self, keys: Iterable[Key]) -> None:
        """Take keys out that are in."""
        deque(map(self._keys.__delitem__, keys), maxlen=0)

    def oldest(self, n: int, keep: Collection[Key]) -> list[Key]:
        """The n least recent keys that are not in `keep`, or as many as there are. They stay in."""
        return list(islice(filterfalse(keep.__contains__, self._keys), max(0, n)))

    def clear(self) -> None:
        self._keys.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
