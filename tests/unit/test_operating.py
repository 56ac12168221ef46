"""The guide to alerts: a section for each, and only names that exist."""

import re
from dataclasses import fields
from pathlib import Path

from kvloft import metric_names
from kvloft.transfer.limits import CascadeConfig

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/operating.md").read_text()
ALERTS = re.findall(r"^\s*- alert: (\w+)$", (ROOT / "etc/prometheus/kvloft-alerts.yml").read_text(), re.M)
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S))
SETTINGS = re.compile(r"`(\w+_(?:share|seconds|failures|blocks))`")


def test_each_alert_has_its_section_and_each_section_its_alert():
    assert ALERTS
    assert list(SECTIONS) == ALERTS


def test_each_section_says_what_it_means_where_to_look_and_what_to_do():
    for name, text in SECTIONS.items():
        marks = [text.find(mark) for mark in ("**Meaning.**", "**Look at**", "**Do")]
        assert -1 not in marks and marks == sorted(marks), name


def test_links_lead_to_sections():
    links = re.findall(r"\]\(#([^)]*)\)", GUIDE)
    assert links
    assert set(links) <= {name.lower() for name in SECTIONS}
    for path in re.findall(r"\]\(([^#)][^)]*)\)", GUIDE):
        assert (ROOT / "docs" / path).is_file()


def test_metrics_and_settings_exist():
    names = {name.removesuffix("_total") for name in re.findall(r"vllm:kvloft_\w+", GUIDE)}
    assert names and names <= {value for key, value in vars(metric_names).items() if key.isupper()}
    settings = set(SETTINGS.findall(GUIDE))
    assert settings and settings <= {field.name for field in fields(CascadeConfig)}
