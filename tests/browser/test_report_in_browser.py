"""The report, in a real browser: it draws every chart, asks the network for nothing, and its controls work."""

import pytest

pytest.importorskip("altair", reason="charts need kvloft[report]")
pytest.importorskip("selenium", reason="driving a browser needs selenium")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from kvloft.report.replay import replay_page
from kvloft.report.study import study
from kvloft.sim.replay import ReplayResult, survey
from kvloft.traces.event import TraceRequest


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The browser, with a report of three policies open and drawn."""
    requests = [TraceRequest([0, at % 3, 5 + at], time=60.0 * at, session=f"s{at % 4}") for at in range(40)]
    results = [
        ReplayResult("t", policy, capacity, capacity / 50, 10, 100, ratio * capacity / 32, 5, 1, 0)
        for policy, ratio in (("lru", 0.2), ("arc", 0.3), ("optimum", 0.4))
        for capacity in (8, 16, 32)
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    replay_page("a trace", survey(requests), results, study(requests, "lru", 8)).write(path)
    browser.get(path.as_uri())
    WebDriverWait(browser, 30).until(lambda b: b.find_element(By.TAG_NAME, "html").get_attribute("data-drawn"))
    return browser


def test_every_chart_is_drawn(page):
    charts = page.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) == 7
    for chart in charts:
        drawing = chart.find_element(By.CSS_SELECTOR, "svg.marks")
        assert drawing.size["width"] > 200 and drawing.size["height"] > 200
        assert drawing.find_elements(By.CSS_SELECTOR, ".role-mark path")
    assert page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_nothing_sticks_out_of_the_page(page):
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    for charts in page.find_elements(By.CSS_SELECTOR, ".charts"):
        assert page.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", charts)


def test_a_click_in_the_legend_singles_out_a_policy(page):
    curves = page.find_element(By.ID, "chart0")

    def opacities():
        """Of the lines, in the order of the legend."""
        lines = curves.find_elements(By.CSS_SELECTOR, ".mark-line path")
        return [float(line.get_attribute("opacity") or 1) for line in lines]

    entries = curves.find_elements(By.CSS_SELECTOR, ".role-legend-label text")
    assert [entry.text for entry in entries] == ["lru", "arc", "optimum"]
    assert opacities() == [1, 1, 1]
    entries[1].click()
    WebDriverWait(page, 5).until(lambda _: sorted(opacities()) == [0.12, 0.12, 1])


def test_charts_can_be_saved(page):
    menu = page.find_element(By.CSS_SELECTOR, "#chart0 details")
    menu.find_element(By.TAG_NAME, "summary").click()
    links = menu.find_elements(By.TAG_NAME, "a")
    WebDriverWait(page, 5).until(lambda _: [link.text for link in links] == ["Save as SVG", "Save as PNG"])
