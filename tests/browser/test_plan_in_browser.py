"""The page of a plan, in a real browser: every chart is drawn, the answer stands out, and its controls work."""

import re

import pytest

pytest.importorskip("altair", reason="charts need kvloft[report]")
pytest.importorskip("selenium", reason="driving a browser needs selenium")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from kvloft.report.plan import plan_page
from kvloft.sim.advice import Target, advise
from kvloft.sim.cost import Prices
from kvloft.sim.hardware import GPUS
from kvloft.sim.latency import Machine
from kvloft.sim.planner import Setup, measure, measure_load, price
from kvloft.sim.tier import TierModel
from kvloft.traces.formats import open_trace
from kvloft.traces.synth import Workload, synthesize, write_trace
from kvloft.transfer.limits import Admission

GIB = 1 << 30


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The browser, with a plan of seven sizes and two policies open and drawn."""
    folder = tmp_path_factory.mktemp("plan")
    workload = Workload(requests=80, block_tokens=256)
    write_trace(folder / "trace.jsonl", workload, synthesize(workload), lambda _done, _total: None)
    trace = open_trace(folder / "trace.jsonl")
    setup = Setup(
        machine=Machine(block_tokens=256, block_bytes=32 << 20, prefill_tokens_per_second=30_000.0, gpu_blocks=100),
        gpus=1,
        hosts=(0, 4 * GIB, 16 * GIB),
        disks=(0, 64 * GIB),
        policies=("lru", "arc"),
        admissions=(Admission.EVERYTHING, Admission.SECOND_USE),
        disk=TierModel("disk", 0),
    )
    load = measure_load(trace)
    plan = price(measure(trace, setup, load, workers=1), setup, Prices(), 3.0)
    target = Target(model="llama", gpu=GPUS["H100"], tp=1, kv_dtype="auto", gpu_kv_bytes=20 * GIB, flops=1.6e10, mfu=0.5)
    path = folder / "plan.html"
    plan_page(trace.name, plan, advise(plan, setup, load, target), load).write(path)
    browser.get(path.as_uri())
    WebDriverWait(browser, 30).until(lambda b: b.find_element(By.TAG_NAME, "html").get_attribute("data-drawn"))
    return browser


def test_every_chart_is_drawn(page):
    charts = page.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) == 5
    for chart in charts:
        drawing = chart.find_element(By.CSS_SELECTOR, "svg.marks")
        assert drawing.size["width"] > 200 and drawing.size["height"] > 150
        assert drawing.find_elements(By.CSS_SELECTOR, ".role-mark path")
    assert page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_the_answer_is_said_first_and_framed(page):
    verdict = page.find_element(By.CSS_SELECTOR, ".verdict p").text
    cells = page.find_elements(By.CSS_SELECTOR, "#chart1 .mark-rect path")
    framed = [cell for cell in cells if cell.get_attribute("stroke-width") == "3"]
    assert len(cells) == 5 and len(framed) == 1
    host, disk = re.match(r"host memory: ([^;]+); disk: ([^;]+)", framed[0].get_attribute("aria-label")).groups()
    assert verdict.startswith(f"Buy {host} of host memory" + (f" and {disk} of disk" if disk != "0" else ", no disk"))


def test_nothing_sticks_out_of_the_page(page):
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    for charts in page.find_elements(By.CSS_SELECTOR, ".charts"):
        assert page.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", charts)


def test_a_click_in_the_legend_singles_out_a_policy(page):
    chart = page.find_element(By.ID, "chart2")

    def faint():
        points = chart.find_elements(By.CSS_SELECTOR, ".mark-symbol.role-mark path")
        return sum(float(point.get_attribute("opacity") or 1) < 0.5 for point in points)

    assert faint() == 0
    entries = chart.find_elements(By.CSS_SELECTOR, ".role-legend-label text")
    assert [entry.text for entry in entries] == ["none", "lru", "arc"]
    entries[1].click()
    WebDriverWait(page, 5).until(lambda _: faint() > 0)
