"""A disk tier in trouble, named in settings by its class and module."""

import math
from typing import Any

from kvloft.keys import Namespace
from kvloft.tiers.disk import DiskTier
from kvloft.tiers.wrappers import Faulty, Slow, Wrapper


class TroubledDisk(Wrapper):
    """A disk that "hangs", "fails" or "dawdles" (a quarter of a second for each job)."""

    def __init__(self, block_bytes: int, namespace: Namespace, path: str, mood: str, **settings: Any) -> None:
        disk = DiskTier(path, 64 << 20, block_bytes, namespace, **settings)
        moods = {
            "hangs": lambda: Slow(disk, math.inf),
            "fails": lambda: Faulty(disk, store=1.0, load=1.0),
            "dawdles": lambda: Slow(disk, 0.25),
        }
        super().__init__(moods[mood]())
