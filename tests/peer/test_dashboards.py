"""Dashboard and alert rules name only metrics that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="metric definitions need vLLM")
import yaml

from kvloft.vllm.metrics import metric_definitions
from kvloft.vllm.tier_metrics import tier_metric_definitions

ROOT = Path(__file__).parents[2]
STOCK = {
    "vllm:prefix_cache_hits",
    "vllm:prefix_cache_queries",
    "vllm:external_prefix_cache_hits",
    "vllm:external_prefix_cache_queries",
}
"""Of vLLM itself; `test_stock_names` looks for them in its source."""
NAME = re.compile(r"vllm:[a-z_]+")


def definitions():
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import _ConnectorMetricName, _TransferMetricName

    names = {
        value
        for enum in (_ConnectorMetricName, _TransferMetricName)
        for key, value in vars(enum).items()
        if "vllm:" in str(value)
    }
    return metric_definitions({}) | tier_metric_definitions() | dict.fromkeys(names)


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression."""
    dashboard = json.loads((ROOT / "etc/grafana/kvloft.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    rules = yaml.safe_load((ROOT / "etc/prometheus/kvloft-alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def exposed(name: str, defined: dict) -> bool:
    """Whether Prometheus sees the name: counters end in _total, gauges do not."""
    base = name.removesuffix("_total")
    if base in STOCK:
        return name.endswith("_total")
    kind = type(defined.get(base)).__name__
    if kind == "OffloadingGaugeMetadata":
        return name == base
    return base in defined and name.endswith("_total")


def test_every_name_exists():
    defined = definitions()
    found = {name for _, expression in expressions() for name in NAME.findall(expression)}
    assert len(found) > 15
    assert {name for name in found if not exposed(name, defined)} == set()


def test_every_label_exists():
    defined = definitions()
    for where, expression in expressions():
        for name, labels in re.findall(r"(vllm:kvloft_[a-z_]+)\{([^}]*)\}", expression):
            known = {*defined[name.removesuffix("_total")].labelnames, "model_name", "instance", "engine"}
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", labels))
            assert used <= known, f"{where}: {name} has no label {used - known}"


def test_stock_names():
    import vllm.v1.metrics.loggers as loggers

    source = Path(loggers.__file__).read_text()
    assert all(f'"{name}"' in source for name in STOCK)


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = json.loads((ROOT / "etc/grafana/kvloft.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
