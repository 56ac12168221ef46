"""Many requests as a few arrays: what fast passes over a trace work on."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvloft.traces.event import TraceRequest

Ints = npt.NDArray[np.int64]
_Integer = TypeVar("_Integer", bound=np.signedinteger)


class Columns(NamedTuple):
    """Requests, one after another.

    Args:
        keys: their blocks, [blocks].
        lengths: how many blocks each request has, [requests].
    """

    keys: Ints
    lengths: Ints


def columns(requests: Iterable[TraceRequest], blocks: int = 1 << 20) -> Iterator[Columns]:
    """The requests in runs of at least `blocks` blocks (the last has fewer). No request is split."""
    keys: list[int] = []
    lengths: list[int] = []
    for request in requests:
        keys.extend(request.keys)
        lengths.append(len(request.keys))
        if len(keys) >= blocks:
            yield Columns(np.array(keys, np.int64), np.array(lengths, np.int64))
            keys, lengths = [], []
    if lengths:
        yield Columns(np.array(keys, np.int64), np.array(lengths, np.int64))


class Numbering:
    """Gives every id a number of its own, small enough to index arrays by.

    Most traces count their ids up from 0: those are their own numbers. From the first id of 2^31 or more on, ids that are
    greater than all before are numbered as they come.
    """

    _FAR = 1 << 31

    def __init__(self) -> None:
        self.count = 0
        """All numbers given so far are below it."""
        self._far: dict[int, int] = {}
        self._direct: int | None = None

    def __call__(self, keys: Ints) -> Ints:
        top = int(keys.max(initial=-1)) + 1
        if self._direct is None and top <= self._FAR:
            self.count = max(self.count, top)
            return keys
        if self._direct is None:
            self._direct = self.count
        distinct, where = np.unique(keys, return_inverse=True)
        direct, far = self._direct, self._far
        numbers = [key if key < direct else direct + far.setdefault(key, len(far)) for key in distinct.tolist()]
        self.count = direct + len(far)
        return np.array(numbers, np.int64)[where]


def grown(array: npt.NDArray[_Integer], size: int, fill: int) -> npt.NDArray[_Integer]:
    """The array, made longer if it is shorter than `size`, by half at least."""
    if size <= len(array):
        return array
    longer = np.full(max(size, len(array) + len(array) // 2), fill, array.dtype)
    longer[: len(array)] = array
    return longer


def by_key(keys: Ints) -> tuple[Ints, Ints]:
    """The accesses sorted by key, those of one key in the order they came: their keys, their indices."""
    bits = len(keys).bit_length()
    joint = (keys << bits) | np.arange(len(keys))
    joint.sort()
    return joint >> bits, joint & ((1 << bits) - 1)


def next_access(keys: Ints) -> Ints:
    """For each access the index of the next one to the same key; len(keys) if there is none."""
    ordered, where = by_key(keys)
    following = np.full(len(keys), len(keys), np.int64)
    again = ordered[1:] == ordered[:-1]
    following[where[:-1][again]] = where[1:][again]
    return following


def hold(requests: Iterable[TraceRequest]) -> Columns:
    """All the requests as one run of arrays, with small numbers for keys: 8 bytes a block."""
    number = Numbering()
    parts = [Columns(number(part.keys), part.lengths) for part in columns(requests)]
    empty = np.zeros(0, np.int64)
    return Columns(
        np.concatenate([part.keys for part in parts]) if parts else empty,
        np.concatenate([part.lengths for part in parts]) if parts else empty,
    )
