"""docs/metrics.md is what the code says. Run as a script, this file makes it so."""

import re
from pathlib import Path

from kvloft import metric_names
from kvloft.metric_names import METRICS, Where, metric_table

DOC = Path(__file__).parents[2] / "docs/metrics.md"


def with_tables(text: str) -> str:
    """The document with each table behind its mark."""
    for where in Where:
        mark = f"<!-- {where} -->\n"
        before, _, rest = text.partition(mark)
        text = f"{before}{mark}\n{metric_table(where)}\n" + re.sub(r"\A\n?(\|.*\n)*", "", rest)
    return text


def test_the_document_has_the_tables_of_the_code() -> None:
    text = DOC.read_text()
    assert all(f"<!-- {where} -->" in text for where in Where)
    assert text == with_tables(text), f"run: python {Path(__file__).name}"


def test_every_name_is_in_the_table_once() -> None:
    names = [value for key, value in vars(metric_names).items() if key.isupper() and isinstance(value, str)]
    assert sorted(names) == sorted(metric.name for metric in METRICS)


def test_every_metric_says_what_to_do() -> None:
    assert all(metric.meaning.strip() and metric.action.endswith(".") for metric in METRICS)
    alerts = {name for metric in METRICS for name in re.findall(r"Kvloft\w+", metric.action)}
    guide = (DOC.parent / "operating.md").read_text()
    assert alerts and all(f"## {name}\n" in guide for name in alerts)


if __name__ == "__main__":
    DOC.write_text(with_tables(DOC.read_text()))
