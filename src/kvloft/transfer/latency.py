"""How long a tier takes, learned from the jobs it has done."""

import math


class Latency:
    """Predicts the seconds until n blocks have arrived, as `base + n * per_block`, n counting those ahead in the queue.

    A least-squares line through the jobs seen, whose weight fades with age, so that a tier that recovers is soon believed.

    Args:
        memory: seconds after which a job weighs 1/e of a new one.
    """

    def __init__(self, memory: float = 30.0) -> None:
        self._memory = memory
        self._at = 0.0
        self._w = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, blocks: int, seconds: float, now: float) -> None:
        """`blocks` (those of a job and those that were ahead of it) took `seconds`."""
        fade = math.exp(-max(now - self._at, 0.0) / self._memory)
        self._at = now
        self._w = self._w * fade + 1
        self._x = self._x * fade + blocks
        self._y = self._y * fade + seconds
        self._xx = self._xx * fade + blocks * blocks
        self._xy = self._xy * fade + blocks * seconds

    def predict(self, blocks: int) -> float | None:
        """Seconds until `blocks` have arrived; None if nothing has been seen yet."""
        if not self._w:
            return None
        mean_x, mean_y = self._x / self._w, self._y / self._w
        spread = self._xx / self._w - mean_x * mean_x
        slope = (self._xy / self._w - mean_x * mean_y) / spread if spread > 1e-6 * mean_x * mean_x else -1.0
        base = mean_y - slope * mean_x
        if slope < 0 or base < 0:
            # Too little variety, or noise: all of the time is put down to the blocks.
            return mean_y / mean_x * blocks
        return base + slope * blocks


class PrefillRate:
    """Tokens a second that the engine computes: configured, or a running mean of what was measured.

    Args:
        configured: tokens a second; measurements are then ignored. None: unknown until measured.
    """

    def __init__(self, configured: float | None = None) -> None:
        self._fixed = configured is not None
        self.tokens_per_second = configured

    def observe(self, tokens: int, seconds: float) -> None:
        """The engine computed `tokens` in `seconds`."""
        if self._fixed or tokens <= 0 or seconds <= 0:
            return
        rate = tokens / seconds
        before = self.tokens_per_second
        self.tokens_per_second = rate if before is None else before + 0.2 * (rate - before)

    def seconds(self, tokens: int) -> float | None:
        """Time to compute `tokens`; None if the rate is unknown."""
        return tokens / self.tokens_per_second if self.tokens_per_second else None
