"""What the disk tier tells the log."""

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)
PAUSE = 60.0
"""Seconds before trouble of the same kind is told again."""


class Troubles:
    """Warnings about one directory: of each kind the first at once, then at most one every `PAUSE` seconds, which says how
    many were left out. A medium that fails, fails for every block.

    Args:
        path: the directory.
        clock: seconds.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def tell(self, kind: str, error: object) -> None:
        """Something went wrong. Not to be called under the tier's lock: handlers of logs may wait."""
        now = self._clock()
        with self._lock:
            if now - self._told.get(kind, -PAUSE) < PAUSE:
                self._untold[kind] = self._untold.get(kind, 0) + 1
                return
            self._told[kind] = now
            untold = self._untold.pop(kind, 0)
        more = f" ({untold} more since the last of these)" if untold else ""
        _log.warning("disk tier %s: %s: %s%s", self._path, kind, error, more)
