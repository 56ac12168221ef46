"""Many requests as a few arrays: what fast passes over a trace work on."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvloft.errors import TraceError
from kvloft.traces.event import TraceRequest

Ints = npt.NDArray[np.int64]
_Integer = TypeVar("_Integer", np.int64, np.int8, np.uint16)


class Columns(NamedTuple):
    """Requests, one after another.

    Args:
        keys: their blocks, [blocks].
        lengths: how many blocks each request has, [requests].
    """

    keys: Ints
    lengths: Ints


def columns(requests: Iterable[TraceRequest], blocks: Callable[[], int] = lambda: 1 << 20) -> Iterator[Columns]:
    """The requests in runs of at least so many blocks (the last has fewer); `blocks` is asked anew before each run.

    No request is split.
    """
    enough = blocks()
    keys, lengths = array("q"), array("q")
    for request in requests:
        keys.extend(request.keys)
        lengths.append(len(request.keys))
        if len(keys) >= enough:
            yield Columns(np.frombuffer(keys, np.int64), np.frombuffer(lengths, np.int64))
            keys, lengths, enough = array("q"), array("q"), blocks()
    if lengths:
        yield Columns(np.frombuffer(keys, np.int64), np.frombuffer(lengths, np.int64))


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


class ChainCheck:
    """Holds a trace to what its ids promise: a block always follows the same block, or always begins a request.

    It remembers 16 bits of what a block follows, so one breach in 65,535 goes unseen.
    """

    def __init__(self) -> None:
        self._parents: npt.NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._requests = 0

    def __call__(self, keys: Ints, starts: Ints, count: int) -> None:
        """Look at requests that follow those looked at before.

        Args:
            keys: their blocks' numbers, [blocks].
            starts: where each request that has blocks begins in `keys`.
            count: numbers given so far.

        Raises:
            TraceError: some block follows different ones.
        """
        parents = (keys * 0x9E37_79B1 >> 13).astype(np.uint16)
        parents[1:] = np.maximum(parents[:-1], 2)
        parents[starts] = 1
        self._parents = grown(self._parents, count, 0)
        known = self._parents[keys]
        self._parents[keys] = parents
        odd = np.flatnonzero((self._parents[keys] != parents) | ((known != 0) & (known != parents)))
        if len(odd):
            request = int(np.searchsorted(starts, odd[0], "right"))
            raise TraceError(
                f"request {self._requests + request} (of those with blocks): its block {odd[0] - starts[request - 1]} "
                "follows another block elsewhere, so the ids are not prefix-chained; this figure is for chains only"
            )
        self._requests += len(starts)


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
