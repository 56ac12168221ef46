"""Who waits for blocks from below, and what is on its way for them."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvloft.request import Key, Request
from kvloft.transfer.link import Link


@dataclass(slots=True, eq=False)
class Wait:
    """A request that has been told to wait, until it loads or ends."""

    request: Request
    deadline: float
    """From then on it is told of no more than what is ready."""
    seen: float
    """When it last asked."""
    ready: dict[Key, None] = field(default_factory=dict)
    """Blocks found ready that are not held for it yet."""
    held: dict[Key, None] = field(default_factory=dict)
    """Blocks kept for it."""
    wanted: dict[Key, int] = field(default_factory=dict)
    """Blocks to be brought, in the order asked for, and the tier that has them."""
    unknown: dict[Key, int] = field(default_factory=dict)
    """Blocks that a tier is looking up."""
    patience: float = 0.0
    """Until when it waits for tiers to look up."""
    loads: dict[Key, "Load"] = field(default_factory=dict)
    """Blocks on their way."""
    refused: set[Key] = field(default_factory=set)
    """Blocks beyond the prefix that fits: misses for it."""
    failed: set[tuple[int, Key]] = field(default_factory=set)
    """What a tier did not deliver."""
    shunned: set[int] = field(default_factory=set)
    """Tiers that are slower than recomputing what it needs from them."""
    sources: dict[Key, str] = field(default_factory=dict)
    """Tiers that its blocks came from."""

    @property
    def owns(self) -> bool:
        """Whether host memory is taken for it."""
        return bool(self.held or self.loads)


@dataclass(slots=True, eq=False)
class Load:
    """One block on its way up."""

    key: Key
    link: Link
    slot: int
    owner: Request
    """On whose behalf the pool made room."""
    waits: dict[Hashable, Wait] = field(default_factory=dict)
    """Who waits for it, by request id."""
    submitted: bool = False
    probe: bool = False
    """It only tells how the tier does: nobody waits for it."""
