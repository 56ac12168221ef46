"""A request: one prompt's life, and what its caller knows about it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = Hashable
"""A block's identity: opaque, hashable, immutable. In vLLM 36 bytes: prefix-chained hash + 4-byte KV-group index."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt's life in the cache, and the hints its caller gave.

    Equal ids mean the same request. Times are in seconds.

    Args:
        id: identity of the request, unique among those in flight.
        tenant: whose request it is, for quotas and traces. It separates no blocks: keys do (vLLM's `cache_salt` is part of
            them), and in tiers the namespace.
        session: the conversation it belongs to, if known.
        last: the conversation is over after this request: its blocks are dead weight.
        ttl: the blocks are of no use this long after the request ends.
        priority: greater is worth more; 0 is normal.
        pin_until: absolute time (same clock as the pool's) until which the blocks should stay.
        position: gives a key's place in the prompt (vLLM: its end token), or None if unknown. Without it the order in
            which the request first named its keys is its chain.
    """

    id: Hashable
    tenant: str = ""
    session: str | None = None
    last: bool = False
    ttl: float | None = None
    priority: int = 0
    pin_until: float | None = None
    position: Callable[[Key], int | None] | None = None
