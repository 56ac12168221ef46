"""What a shared store holds, asked in batches on a thread of its own, remembered for a while."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvloft.request import Key
from kvloft.tiers.base import Presence

BATCH = 512
"""Most blocks of one question to the store."""
ASKED_MOST = 1 << 16
"""Most questions waiting; further blocks are misses for now."""
KNOWN_MOST = 1 << 17
"""Most answers remembered."""


class _Known(NamedTuple):
    here: bool
    until: float


class Lookups:
    """Answers `Tier.lookup` from memory and has the store asked for the rest.

    A block is UNKNOWN for at most `timeout` seconds, then a miss, whether or not the store has answered. An answer that
    comes later is no longer waited for, but remembered.

    Args:
        exists: asks the store which of the blocks it holds; runs on this object's thread, may block, may raise.
        timeout: seconds for which a block may be UNKNOWN.
        fresh: seconds for which an answer is remembered.
        name: of the thread.
        clock: seconds.
    """

    def __init__(
        self,
        exists: Callable[[Sequence[Key]], Sequence[bool]],
        timeout: float,
        fresh: float,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.error: str | None = None
        """Why the last question failed; None if it did not."""
        self._exists = exists
        self._timeout = timeout
        self._fresh = fresh
        self._clock = clock
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._asked: dict[Key, float] = {}
        """Deadlines of the blocks that the store is to be asked for or is being asked for."""
        self._waiting: list[Key] = []
        self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def look(self, keys: Sequence[Key]) -> list[Presence]:
        """What is known of each block. Never waits for the store."""
        now = self._clock()
        with self._wake:
            idle = not self._waiting
            answers = [self._look(key, now) for key in keys]
            if idle and self._waiting:
                self._wake.notify()
        return answers

    def note(self, keys: Iterable[Key], here: bool) -> None:
        """Blocks of which something better is known than what the store was asked, or is being asked, for."""
        until = self._clock() + self._fresh
        with self._wake:
            for key in keys:
                self._asked.pop(key, None)
                self._remember(key, here, until)

    def close(self, timeout: float) -> bool:
        """Stop asking; False if the store still had not answered `timeout` seconds later."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _look(self, key: Key, now: float) -> Presence:
        known = self._known.get(key)
        if known is not None and now < known.until:
            return Presence.HIT if known.here else Presence.MISS
        deadline = self._asked.get(key)
        if deadline is None:
            if self._closed or len(self._asked) >= ASKED_MOST:
                return Presence.MISS
            self._asked[key] = now + self._timeout
            self._waiting.append(key)
            return Presence.UNKNOWN
        return Presence.UNKNOWN if now < deadline else Presence.MISS

    def _remember(self, key: Key, here: bool, until: float) -> None:
        self._known[key] = _Known(here, until)
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MOST:
            self._known.popitem(last=False)

    def _take(self) -> dict[Key, float] | None:
        """The next questions and their deadlines. Blocks no longer asked for, or not in time, are left out."""
        with self._wake:
            while not (self._waiting or self._closed):
                self._wake.wait()
            if self._closed:
                return None
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            now, wanted = self._clock(), {}
            for key in batch:
                deadline = self._asked.get(key)
                if deadline is None:
                    continue
                if now < deadline:
                    wanted[key] = deadline
                else:
                    del self._asked[key]
                    self.counters["lookups_late"] += 1
            return wanted

    def _run(self) -> None:
        while (asked := self._take()) is not None:
            if not asked:
                continue
            keys = list(asked)
            try:
                answers, error = self._exists(keys), None
            except Exception as failure:
                answers, error = [False] * len(keys), str(failure)
            now = self._clock()
            with self._wake:
                self.error = error
                self.counters["lookups"] += len(keys)
                if error is not None:
                    self.counters["lookups_failed"] += len(keys)
                for key, here in zip(keys, answers, strict=True):
                    # Whoever noted something of the block in the meantime, or asked anew, has taken this question away.
                    if self._asked.get(key) == asked[key]:
                        del self._asked[key]
                        self._remember(key, here, now + self._fresh)
                        self.counters["lookups_late"] += now >= asked[key]
