"""The disk tier. `tier` is what users see; the files below it, from the medium up: `files` (system calls), `locks` (between
processes), `records` (arrays on the medium), `segment` (a file of slots), `space` (the directory's bounds), `catalog` (what
lies where), `workers` (threads), `transfer` (jobs), `upkeep` (the background)."""

from kvloft.tiers.disk.files import Files
from kvloft.tiers.disk.tier import DiskTier

__all__ = ["DiskTier", "Files"]
