"""Settings as tables: what each is called, how it is read, what it means and what holds if it is not given.

Whoever reads settings, explains them, checks them or prints their JSON Schema does so from the same table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvloft.config import nearest, parse_share_or_size, parse_size, shown
from kvloft.errors import ConfigError

Reader: TypeAlias = Callable[[object], Any]
"""A value from what was written. `ValueError` says what would be right, without the setting's name; `ConfigError` names each
setting inside."""
Schema: TypeAlias = Mapping[str, Any]
"""A piece of JSON Schema (2020-12)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Args:
        read: how it is read.
        schema: what may be written.
        written: the same in a few words.
    """

    read: Reader
    schema: Schema
    written: str


@dataclass(frozen=True, slots=True)
class Field:
    """A setting.

    Args:
        name: what people write.
        kind: what it may be.
        meaning: one sentence or two, for people.
        default: what holds if it is not given, as it would have been read; None if that is told in `meaning`.
        required: whether it must be given.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    required: bool = False


def read_fields(
    given: Mapping[str, Any], fields: Sequence[Field], problems: list[str], where: str = "", strict: bool = True
) -> dict[str, Any]:
    """What was given, read; null counts as not given.

    Args:
        given: settings as they were written.
        fields: those that there are.
        problems: every fault found is added, each naming the setting and the fix.
        where: what stands before names in problems, such as "tiers[0].".
        strict: whether all unknown settings are faults, or only those that look like a slip of a known one.
    """
    known = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = known.get(name)
        if field is None:
            # What was given is not repeated: it may hold a secret.
            if meant := nearest(str(name), known):
                problems.append(f"{where}{name}: unknown setting; did you mean {meant}?")
            elif strict:
                problems.append(f"{where}{name}: unknown setting; known are: {', '.join(known)}")
        elif value is not None:
            try:
                values[name] = field.kind.read(value)
            except ConfigError as error:
                problems += error.problems
            except ValueError as error:
                problems.append(f"{where}{name}: {error}")
    problems += [
        f"{where}{field.name}: missing; give {field.kind.written}: {field.meaning}"
        for field in fields
        if field.required and given.get(field.name) is None
    ]
    return values


def object_schema(fields: Iterable[Field], **more: Any) -> dict[str, Any]:
    """JSON Schema of a mapping with these settings and no others."""
    fields = list(fields)
    properties = {field.name: _property(field) for field in fields}
    required = [field.name for field in fields if field.required]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **more,
    }


def _property(field: Field) -> dict[str, Any]:
    schema = {**field.kind.schema, "description": field.meaning}
    if isinstance(field.default, str | int | float):
        schema["default"] = field.default
    return schema


# Kinds that many settings are of.


def _read_text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("is not text; give it in quotes")


def _read_seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError(f"{shown(value)} is not a number of seconds greater than 0")


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{shown(value)} is neither true nor false")


def count(least: int = 1, most: int | None = None) -> Kind:
    """Integers of at least `least` and, if given, at most `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most):
            return value
        raise ValueError(f"{shown(value)} is wrong; give an integer {bounds}")

    limits = {"minimum": least} | ({} if most is None else {"maximum": most})
    return Kind(read, {"type": "integer", **limits}, f"integer {bounds}")


def choice(*choices: str) -> Kind:
    """One of a few words."""
    names = [str(name) for name in choices]
    listed = " or ".join(f'"{name}"' for name in names) if len(names) == 2 else ", ".join(names)

    def read(value: object) -> str:
        if isinstance(value, str) and value in names:
            return value
        meant = nearest(value, names) if isinstance(value, str) else None
        wrong = (
            f"{shown(value)} is neither {listed.replace(' or ', ' nor ')}"
            if len(names) == 2
            else (f"{shown(value)} is unknown; choose one of: {listed}")
        )
        raise ValueError(wrong + (f"; did you mean {meant!r}?" if meant else ""))

    return Kind(read, {"enum": names}, listed)


def constant(text: str) -> Kind:
    """That text and no other. Only its JSON Schema insists: who is spoken to is settled before its settings are read."""
    return Kind(str, {"const": text}, f'"{text}"')


def read_number(value: object) -> float:
    """A number greater than 0, as it was given.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError(f"{shown(value)} is not a number greater than 0")


_SIZE_TEXT = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]?\s*$"
_SHARE_TEXT = r"^\s*\d+(\.\d+)?\s*%\s*$"
_BYTES = {"type": "integer", "minimum": 1}

MAPPING = Kind(lambda value: value, {"type": "object"}, "mapping")
"""Taken as it is, for somebody else to read."""
TEXT = Kind(_read_text, {"type": "string", "minLength": 1}, "text")
SECONDS = Kind(_read_seconds, {"type": "number", "exclusiveMinimum": 0}, "seconds")
NUMBER = Kind(read_number, {"type": "number", "exclusiveMinimum": 0}, "number greater than 0")
FLAG = Kind(_read_flag, {"type": "boolean"}, "true or false")
COUNT = count()
SIZE = Kind(parse_size, {"anyOf": [{"type": "string", "pattern": _SIZE_TEXT}, _BYTES]}, 'bytes, or text such as "4GiB"')
SIZE_OR_SHARE = Kind(
    parse_share_or_size,
    {"anyOf": [{"type": "string", "pattern": _SIZE_TEXT}, {"type": "string", "pattern": _SHARE_TEXT}, _BYTES]},
    'bytes, or text such as "4GiB" or "80%"',
)
