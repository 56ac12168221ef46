"""Approximate counts of how often keys were used, in a bounded number of bytes."""

from collections.abc import Sequence

import numpy as np

from kvloft.request import Key

_SEEDS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


class CountMinSketch:
    """Conservative count-min sketch with small counters that are halved now and then, after Cormode and Muthukrishnan,
    "An Improved Data Stream Summary: The Count-Min Sketch and its Applications", J. Algorithms 55(1), 2005, and Einziger,
    Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13(4), 2017.

    Args:
        keys: about how many different keys are to be told apart; a sample of ten times as many uses is one half-life.
    """

    LIMIT = 15
    """Counters stop here."""

    def __init__(self, keys: int) -> None:
        width = 1 << max(10, (keys - 1).bit_length() + 2)
        self._shift = np.uint64(64 - width.bit_length() + 1)
        self._counts = np.zeros((4, width), np.uint8)
        self._rows = np.arange(4)[:, None]
        self._sample = 10 * keys
        self._uses = 0

    def add(self, keys: Sequence[Key]) -> None:
        """Count one use of each of these distinct keys. Counters are not halved before `age` is called."""
        if not keys:
            return
        places = self._places(keys)
        counts = self._counts[self._rows, places]
        lowest = counts.min(axis=0)
        raised = np.minimum(lowest + 1, self.LIMIT).astype(np.uint8)
        np.maximum.at(self._counts, (self._rows, places), np.maximum(counts, raised))
        self._uses += len(keys)

    def age(self) -> None:
        """Halve the counters, if a sample is full."""
        if self._uses >= self._sample:
            self._counts >>= 1
            self._uses //= 2

    def count(self, keys: Sequence[Key]) -> list[int]:
        """About how often each key was used lately, 0 to `LIMIT`."""
        counts: list[int] = self._counts[self._rows, self._places(keys)].min(axis=0).tolist()
        return counts

    def clear(self) -> None:
        """Forget all uses."""
        self._counts.fill(0)
        self._uses = 0

    def _places(self, keys: Sequence[Key]) -> "np.ndarray[tuple[int, ...], np.dtype[np.intp]]":
        """Where each key is counted: four rows, one column a key. By Python's own hash,
        so keys of bytes fall elsewhere in the next process."""
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys)).view(np.uint64)
        hashes = (hashes ^ (hashes >> np.uint64(32))) * _SEEDS[0]
        mixed = (hashes ^ (hashes >> np.uint64(29)))[None, :] * _SEEDS[:, None]
        places: np.ndarray[tuple[int, ...], np.dtype[np.intp]] = (mixed >> self._shift).astype(np.intp)
        return places
