"""Tables of settings and hints that guides show: each there is has its row, and what a row gives as default is one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvloft.policies.hints import read_hints
from kvloft.tiers.settings import COMMON, TYPES

DOCS = Path(__file__).parents[2] / "docs"
STORES = ("redis", "objects", "mooncake")


def rows_of(page: str, heading: str) -> dict[str, Sequence[str]]:
    """The other cells of a table by each name that stands in the first one."""
    _, found, below = (DOCS / page).read_text().partition(heading)
    assert found, f"{page} has no table {heading!r}"
    rows: dict[str, Sequence[str]] = {}
    for line in below.lstrip("\n").splitlines()[1:]:
        if not line.startswith("|"):
            break
        names, *others = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", names), others)
    return rows


def test_disk():
    rows = rows_of("guides/disk.md", "| setting | default | what |\n")
    fields = {field.name: field for field in (*COMMON, *TYPES["disk"].fields)}
    assert rows.keys() == fields.keys()
    for name, (default, _) in rows.items():
        field = fields[name]
        assert (default == "required") == field.required, name
        if isinstance(field.default, str | int):
            assert default.strip("`") == str(field.default).lower(), name


def test_stores():
    rows = rows_of("scaling.md", "| setting | of | what |\n")
    fields: Mapping[str, Any] = {kind: {field.name for field in TYPES[kind].fields} for kind in STORES}
    assert rows.keys() == set.union(*fields.values())
    for name, (of, _) in rows.items():
        assert [kind for kind in STORES if name in fields[kind]] == (list(STORES) if of == "all" else of.split(", ")), name


def test_hints():
    [problem] = read_hints({"no hint": 1}).problems
    rows = rows_of("guides/hints.md", "| hint | value | what kvloft does |\n")
    assert sorted(rows) == sorted(problem.partition("choose from: ")[2].split(", "))
