"""A circuit breaker: what keeps failing is left alone for a while, then tried again."""

from enum import StrEnum


class BreakerState(StrEnum):
    """Whether a tier is used."""

    CLOSED = "closed"
    """In use."""
    OPEN = "open"
    """Left alone."""
    PROBING = "probing"
    """One job is under way that decides."""


class Breaker:
    """Opens after `failures` failed jobs in a row, or at once when tripped; heals when a probe succeeds.

    While it is open nothing is asked of the tier for `cooldown` seconds. Then a single probe may go; if that fails too,
    the wait doubles, up to `longest`.

    Args:
        failures: failed jobs in a row that open it, at least 1.
        cooldown: seconds of the first wait.
        longest: seconds that no wait exceeds.
    """

    def __init__(self, failures: int, cooldown: float, longest: float) -> None:
        self._failures = failures
        self._cooldown = cooldown
        self._longest = longest
        self._row = 0
        self._wait = cooldown
        self._retry_at = 0.0
        self.state = BreakerState.CLOSED
        self.trips = 0
        """How often it opened, failed probes included."""

    @property
    def closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    def due(self, now: float) -> bool:
        """Whether a probe may be sent."""
        return self.state is BreakerState.OPEN and now >= self._retry_at

    def probe(self) -> None:
        """A probe is on its way; its outcome, `succeed`, `fail` or `trip`, decides."""
        self.state = BreakerState.PROBING

    def succeed(self) -> None:
        """A job came back. Only a probe heals: jobs from before it opened say nothing of now."""
        if self.state is not BreakerState.OPEN:
            self.state = BreakerState.CLOSED
            self._row = 0
            self._wait = self._cooldown

    def fail(self, now: float) -> None:
        """A job failed."""
        self._row += 1
        if self.state is BreakerState.PROBING or (self.closed and self._row >= self._failures):
            self.trip(now)

    def trip(self, now: float) -> None:
        """Open at once. When it is open already, nothing changes."""
        if self.state is BreakerState.OPEN:
            return
        self.state = BreakerState.OPEN
        self.trips += 1
        self._row = 0
        self._retry_at = now + self._wait
        self._wait = min(2 * self._wait, self._longest)
