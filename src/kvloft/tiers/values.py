"""Values of tiers' settings: each reads what was written, and says in a `ValueError` what would be right."""

from kvloft.config import shown


def read_text(value: object) -> str:
    """Text that is not empty. Errors do not repeat it: what is no text may hold a secret."""
    if isinstance(value, str) and value:
        return value
    raise ValueError("is not text; give it in quotes")


def read_seconds(value: object) -> float:
    """A time greater than 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError(f"{shown(value)} is not a number of seconds greater than 0")


def read_count(value: object) -> int:
    """An integer of at least 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(f"{shown(value)} is not an integer of at least 1")


def read_flag(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"{shown(value)} is neither true nor false")
