"""How bytes move: the host arena, and the threads that copy to and from it."""

from kvloft.transfer.arena import Arena, ArenaError, available_memory
from kvloft.transfer.mover import Moved, Mover, Shape, copy_pages

__all__ = ["Arena", "ArenaError", "Moved", "Mover", "Shape", "available_memory", "copy_pages"]
