"""The site builds without warnings, loads nothing from elsewhere, and has the anchors that others point to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvloft import metric_names

pytest.importorskip("mkdocs", reason="needs requirements/docs.txt")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_pages_load_nothing_from_elsewhere(site: Path):
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:|//)|<link[^>]*\srel=\"?(?:stylesheet|preconnect|icon)[^>]*"
        r"\shref=\"?(?:https?:|//)|<link[^>]*\shref=\"?(?:https?:|//)[^>]*\srel=\"?(?:stylesheet|preconnect|icon)"
    )
    pages = [*site.rglob("*.html")]
    assert len(pages) > 25
    for page in pages:
        assert not loads.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_each_alert_points_to_a_section_of_the_guide(site: Path):
    rules = yaml.safe_load((ROOT / "etc/prometheus/kvloft-alerts.yml").read_text())["groups"][0]["rules"]
    assert rules
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == rule["alert"].lower()
        built = site / Path(page).relative_to("docs").with_suffix("") / "index.html"
        assert f'id="{anchor}"' in built.read_text(), rule["alert"]


def test_links_beside_the_site_lead_somewhere():
    for page in ROOT.glob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (ROOT / link).exists(), f"{page.name}: {link}"


def test_metrics_that_pages_name_exist():
    known = {value for name, value in vars(metric_names).items() if name.isupper()}
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for name in re.findall(r"vllm:kvloft_\w+", page.read_text()):
            assert name.removesuffix("_total") in known, f"{page.name}: {name}"


def test_reference_has_every_command_and_every_public_name(site: Path):
    from typer.main import get_command

    import kvloft
    from kvloft.cli import _app

    commands = (site / "reference/commands/index.html").read_text()
    group = get_command(_app)
    names = group.list_commands(group.make_context("kvloft", [], resilient_parsing=True))
    assert names and all(f'id="kvloft-{name}"' in commands for name in names)
    reference = "".join(page.read_text() for page in site.glob("reference/*/index.html"))
    for name in kvloft.__all__:
        assert re.search(rf'id="kvloft(\.\w+)*\.{name}"', reference), name
