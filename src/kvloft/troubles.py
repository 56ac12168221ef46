"""What goes wrong again and again, told to the log now and then."""

import logging
import threading
import time
from collections.abc import Callable

PAUSE = 60.0
"""Seconds before trouble of the same kind is told again."""


class Troubles:
    """Warnings about one thing: of each kind the first at once, then at most one every `PAUSE` seconds, which says how many
    were left out. A medium that fails, fails for every block.

    Args:
        what: it is about, as it is named in the log.
        log: where they go.
        clock: seconds.
    """

    def __init__(self, what: str, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._log, self._clock = what, log, clock
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def tell(self, kind: str, error: object, *, trace: bool = False) -> None:
        """Something went wrong. Not to be called under a lock that others wait for: handlers of logs may wait.

        Args:
            kind: what sort of trouble; few different ones.
            error: the reason.
            trace: show where the exception that is being handled came from.
        """
        now = self._clock()
        with self._lock:
            if now - self._told.get(kind, -PAUSE) < PAUSE:
                self._untold[kind] = self._untold.get(kind, 0) + 1
                return
            self._told[kind] = now
            untold = self._untold.pop(kind, 0)
        more = f" ({untold} more since the last of these)" if untold else ""
        self._log.warning("%s: %s: %s%s", self._what, kind, error, more, exc_info=trace)
