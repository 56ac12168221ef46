"""Hints that callers give with a request, and how they are read; `kvloft.policies.hinted` executes them.

Reading never fails: what is malformed is left out and told as a list of problems. However large or deep it is, reading it
takes no longer than reading what is right.
"""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_FIELDS_LIMIT = 32
"""More are not even looked at."""


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
        return Hints({}, [f'hints: {_shown(given)} is no object; give fields by name, such as {{"session": "..."}}'])
    if len(given) > _FIELDS_LIMIT:
        return Hints({}, [f"hints: more than {_FIELDS_LIMIT} fields; choose from: {', '.join(_READERS)}"])
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        if name not in _READERS:
            problems.append(f"hints: {_shown(name)} is unknown; choose from: {', '.join(_READERS)}")
            continue
        accepts, wanted = _READERS[name]
        if value is None:
            continue
        if accepts(value):
            fields[name] = value
        else:
            problems.append(f"hints: {name}: {_shown(value)} is not {wanted}")
    return Hints(fields, problems)


def _shown(value: object) -> str:
    """A value as far as it is short to tell: the `repr` of a large one takes long, that of a deep one fails."""
    if isinstance(value, str):
        return repr(value[:80])
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    return f"what was given (a {type(value).__name__})"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and not _LONE_SURROGATE.search(value)


_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""JSON can spell it, but no metric, message or file can hold it."""


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


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
