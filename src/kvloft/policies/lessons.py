"""What ghost hits teach, in the order of their stores: the part of ARC that waits for bytes to arrive."""

from array import array
from collections.abc import Iterable, Mapping

from kvloft.request import Key

PATIENCE = 1000
"""How many lessons more than the capacity may wait for an earlier one in flight; then it is given up, so that a store that
never ends costs bounded memory."""


class Lessons:
    """A target between 0 and the capacity, and the moves it has yet to make.

    A lesson is about a block being stored. It counts once its store and all those before it have ended, so the order in
    which stores complete changes nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.target = 0.0
        """What has been learned, without what is in flight."""
        self._capacity = float(capacity)
        self._numbers: dict[Key, int] = {}
        """Lessons in flight, numbered from the first one ever."""
        self._moves = array("d")
        self._settled = bytearray()
        """Whether the store has ended. Both begin with the first lesson that waits."""
        self._learned = 0
        """The number of that lesson."""

    def keys(self) -> Iterable[Key]:
        """Blocks about which a lesson is in flight."""
        return self._numbers.keys()

    def add(self, moves: Mapping[Key, float]) -> None:
        """Stores have begun, of blocks that will move the target so."""
        first = self._learned + len(self._moves)
        self._numbers.update(zip(moves, range(first, first + len(moves)), strict=True))
        self._moves.extend(moves.values())
        self._settled.extend(bytes(len(moves)))

    def settle(self, keys: Iterable[Key], success: bool) -> list[Key]:
        """Stores of these blocks have ended; one that failed teaches nothing. Returns those with a lesson."""
        taught = list(filter(self._numbers.__contains__, keys)) if self._numbers else []
        for number in map(self._numbers.pop, taught):
            if number >= self._learned:
                self._settled[number - self._learned] = True
                if not success:
                    self._moves[number - self._learned] = 0.0
        if taught:
            self._learn()
        return taught

    def expected(self, moves: Iterable[float]) -> float:
        """The target once all that is in flight has ended, and then these moves."""
        return self._moved(self._moved(self.target, self._moves), moves)

    def clear(self) -> None:
        self.__init__(self._capacity)  # type: ignore[misc]

    def _learn(self) -> None:
        """Make the moves that no store in flight precedes."""
        while self._moves:
            ready = self._settled.find(False)
            if ready < 0:
                ready = len(self._moves)
            self.target = self._moved(self.target, self._moves[:ready])
            given_up = int(len(self._moves) - ready > PATIENCE + self._capacity)
            del self._moves[: ready + given_up], self._settled[: ready + given_up]
            self._learned += ready + given_up
            if not given_up:
                break

    def _moved(self, target: float, moves: Iterable[float]) -> float:
        for move in moves:
            target += move
            if target < 0.0:
                target = 0.0
            elif target > self._capacity:
                target = self._capacity
        return target
