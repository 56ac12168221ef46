"""Hints that callers give with a request, and how they are read; `kvloft.policies.hinted` executes them.

Reading never fails: what is malformed is left out and told as a list of problems.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Hints(NamedTuple):
    """What a caller said.

    Args:
        fields: of `Request`, as its keyword arguments.
        problems: what was ignored, each with the field, the value and what would be right.
    """

    fields: dict[str, Any]
    problems: list[str]


def read_hints(given: object) -> Hints:
    """Read hints, as JSON decodes them: `{"session": "...", "last": true, "ttl": 600, "priority": 5, "tenant": "...",
    "pin_until": 1767225600}`. Times are in seconds, `pin_until` since 1970. Unknown fields are problems, too.
    """
    if given is None:
        return Hints({}, [])
    if not isinstance(given, Mapping):
        return Hints({}, [f'hints: {given!r:.80} is no object; give fields by name, such as {{"session": "..."}}'])
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        if name not in _READERS:
            problems.append(f"hints: {name!r:.80} is unknown; choose from: {', '.join(_READERS)}")
            continue
        accepts, wanted = _READERS[name]
        if value is None:
            continue
        if accepts(value):
            fields[name] = value
        else:
            problems.append(f"hints: {name}: {value!r:.80} is not {wanted}")
    return Hints(fields, problems)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_READERS: dict[str, tuple[Callable[[object], bool], str]] = {
    "session": (_is_name, "a text of 1 to 256 characters"),
    "last": (lambda value: isinstance(value, bool), "true or false"),
    "ttl": (_is_seconds, "a number of seconds, 0 or more"),
    "priority": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and -100 <= value <= 100,
        "a whole number from -100 to 100",
    ),
    "tenant": (_is_name, "a text of 1 to 256 characters"),
    "pin_until": (_is_seconds, "a time in seconds since 1970"),
}
"""By field: what is accepted, and its description."""
