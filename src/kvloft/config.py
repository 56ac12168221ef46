"""Reading settings: sizes as people write them, and names close to known ones."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("i", 1024), ("", 1000))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_LARGEST = 2**63 - 1
"""Bytes that any file or mapping can have."""
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of something whose size is known only where it is, written as "80%".

    Args:
        percent: more than 0, at most 100.
    """

    percent: Decimal

    def of(self, whole: int) -> int:
        """So much of `whole`, rounded down."""
        return int(whole * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent}%"


def parse_size(value: object) -> int:
    """A number of bytes, from an integer or from text such as "4GiB", "512 MB" or "1.5g".

    Units are case-blind: k, M, G and T (with or without B) count in thousands, Ki, Mi, Gi and Ti in 1024s.

    Raises:
        ValueError: it is neither, or is not a whole number of bytes of at least 1 that 63 bits can hold. The text says what
            would be right.
    """
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)) and match[2].lower() in _UNITS:
        size = int(Decimal(match[1]) * _UNITS[match[2].lower()])
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        size = int(value)
    else:
        size = 0
    if not 1 <= size <= _LARGEST:
        raise ValueError(f'{shown(value)} is not a size; give a number of bytes or text such as "4GiB"')
    return size


def parse_share_or_size(value: object) -> int | Share:
    """As `parse_size`, or a share such as "80%".

    Raises:
        ValueError: it is neither. The text says what would be right.
    """
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        try:
            return parse_size(value)
        except ValueError as error:
            raise ValueError(f'{error}, or a share such as "80%"') from None
    share = Share(Decimal(match[1]))
    if not 0 < share.percent <= 100:
        raise ValueError(f"{value!r} is no share; give more than 0% and at most 100%")
    return share


def shown(value: object) -> str:
    """A wrong value as errors repeat it: text and numbers as they are, all else by its kind, for it may hold a secret."""
    if isinstance(value, str | int | float) or not value:
        return repr(value)
    return f"what was given (a {type(value).__name__})"


def format_size(size: int, *, down: bool = False) -> str:
    """Bytes as people read them: "4 GiB", "1.5 MiB", "640 B"; rounded, or rounded `down` where it says how much may be."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    if down:
        digits = 100 if amount < 10 else 10 if amount < 100 else 1
        amount = int(amount * digits) / digits
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` looks like a slip of, if there is one."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None
