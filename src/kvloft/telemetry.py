"""What happened: events and counters, counted once, by the pool."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvloft.request import Key


class EventKind(StrEnum):
    """What an event says of its blocks."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


class Event(NamedTuple):
    """A change of what is readable. Replaying all events in order gives exactly the readable blocks.

    Args:
        kind: STORED (now readable), REMOVED (no longer) or CLEARED (nothing is, `keys` is empty).
        keys: the blocks, in chain order where there is one.
    """

    kind: EventKind
    keys: tuple[Key, ...] = ()


@dataclass(slots=True)
class Counters:
    """Blocks since the pool began, unless said otherwise. Never reset, so rates can be taken from them."""

    hits: int = 0
    """Handed to a load, once per request and block."""
    misses: int = 0
    """Accepted for storing because they were not resident, once per request and block."""
    loaded: int = 0
    """Loads that completed."""
    declined: int = 0
    """Left out of accepted stores, because policy or admission rule found them not worth the room."""
    stored: int = 0
    """Stores that completed."""
    failed: int = 0
    """Stores that failed; their slots were freed."""
    late: int = 0
    """Blocks named in completions that came twice, after a reset, or from somebody who did not own them."""
    ignored_hints: int = 0
    """Hints that were malformed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Stores refused (calls, not blocks), by reason: "size" (larger than the pool), "busy" (too much is being written
    or read), "protected" (what is left belongs to the same request)."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The pool at one moment. Sizes are in blocks; `free + writing + ready == capacity` always."""

    capacity: int
    free: int
    writing: int
    """Those whose bytes are on the way, and slots that an abandoned transfer may still touch."""
    ready: int
    pinned: int
    """Those of `ready` that a transfer is reading or a holder keeps."""
    lists: dict[str, int]
    """Sizes of the policy's lists, ghost lists ("ghost...") included."""
    evicted: dict[str, int]
    """Blocks evicted so far, by the list they sat in."""
    counters: Counters
    generation: int
    """How often the pool was reset."""
