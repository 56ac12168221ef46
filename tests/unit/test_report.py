"""What a report says, and that it says it in one file."""

import json
import re

import pytest

pytest.importorskip("altair", reason="charts need kvloft[report]")

from kvloft.cli import main
from kvloft.errors import ConfigError
from kvloft.report import charts
from kvloft.report.replay import replay_page, verdict
from kvloft.report.study import Slice, study
from kvloft.sim.replay import ReplayResult, survey
from kvloft.traces.event import TraceRequest


def asked(*chains, times=None, session=None):
    times = times or [None] * len(chains)
    return [TraceRequest(keys, time=at, session=session) for keys, at in zip(chains, times, strict=True)]


def result(policy, capacity, ratio):
    return ReplayResult("t", policy, capacity, capacity / 1000, int(ratio * 1000), 1000, ratio, 10, 5, 0)


def test_a_study_of_a_cache_that_forgets():
    """Two blocks of room, LRU: 1 2 are stored, 3 4 push them out, 1 2 are missed with regret, 1 2 hit."""
    found = study(asked([1, 2], [3, 4], [1, 2], [1, 2], times=[0.0, 10.0, 30.0, 31.0]), "lru", 2, slices=2)
    assert [sum(values) for values in zip(*((s.hit, s.regretted, s.first) for s in found.slices), strict=True)] == [2, 2, 4]
    assert found.slices[0] == Slice(0.0, 0, 0, 4)
    assert found.evicted == 4 and found.evicted_for_good == 2
    assert sum(found.regret_ages) == 2 == sum(found.ages_missed) == sum(found.ages_hit)
    assert found.regret_depths["0 to 15"] == 2
    [index] = [at for at, count in enumerate(found.regret_ages) if count]
    assert found.age_edges[index] <= 20 < found.age_edges[index + 1]
    [index] = [at for at, count in enumerate(found.ages_missed) if count]
    assert found.age_edges[index] <= 30 < found.age_edges[index + 1]


def test_a_trace_without_times_counts_in_requests():
    found = study(asked([1], [2], [1]), "lru", 4, slices=3)
    assert not found.timed
    assert [part.at for part in found.slices] == pytest.approx([0, 2 / 3, 4 / 3])


def test_sessions_are_counted_by_their_turns():
    requests = asked([1], [1, 2], session="a") + asked([9], session="b")
    assert study(requests, "lru", 4).turns == {1: 1, 2: 1}


def test_an_empty_trace_is_no_error():
    assert study([], "lru", 4).slices == []


def test_the_verdict_names_winners_and_what_is_enough():
    said = verdict([result("lru", 10, 0.1), result("arc", 10, 0.2), result("lru", 100, 0.30), result("arc", 100, 0.29)])
    assert said[0] == "No policy is best at every size: arc at 10 blocks (20.0%), lru at 100 blocks (30.0%)."
    assert said[1].startswith("100 blocks (10.0% of the unique ones) with lru serve 30.0%")
    said = verdict([result("arc", 10, 0.29), result("lru", 10, 0.2), result("arc", 100, 0.3), result("optimum", 10, 0.4)])
    assert said[0] == "arc serves most at every size."
    assert said[1].startswith("10 blocks (1.0% of the unique ones) with arc serve 29.0%")
    assert said[2] == "Knowing the future, a cache of that size would serve 40.0%."


def test_the_page_holds_everything_and_asks_for_nothing():
    requests = asked([1, 2], [1, 3], [1, 2], times=[0.0, 1.0, 2.0])
    page = replay_page("<b>trace</b>", survey(requests), [result("lru", 2, 0.5)], study(requests, "lru", 2)).render()
    assert "&lt;b&gt;trace&lt;/b&gt;" in page and "<b>trace</b>" not in page
    body, *_scripts = page.split('<script type="module">')
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", body)
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.S)[1].replace("<\\/", "</"))
    assert len(specs) == page.count('class="chart"') == 6


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_curves_for_papers(tmp_path, ending):
    path = tmp_path / f"curves{ending}"
    charts.save(charts.curves([result("lru", 10, 0.1), result("lru", 100, 0.3)], block_bytes=1 << 20), path)
    assert path.stat().st_size > 1000
    assert list(tmp_path.iterdir()) == [path]


def test_other_endings_are_refused_before_the_work(tmp_path):
    with pytest.raises(ConfigError, match=r"a chart is written as \.png, \.svg or \.pdf"):
        charts.check_ending(tmp_path / "curves.gif")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["replay", "--policy", "lru,optimum", "--capacity", "2"], "Ages at reuse"),
        (["replay", "--policy", "lru", "--capacity", "2", "--prefill-rate", "1000"], "TTFT 99 %"),
        (["curve", "--policy", "lru,optimum", "--capacity", "2"], "of the unique ones"),
        (["curve", "--policy", "lru", "--capacity", "100", "--sample", "0.5", "--samples", "2"], "standard error"),
    ],
)
def test_commands_write_report_plot_and_json(tmp_path, command, said):
    trace = tmp_path / "trace.jsonl"
    line = {"input_length": 1024, "output_length": 1}
    kinds = 8 if "--sample" not in command else 256
    lines = [{**line, "timestamp": 1000 * at, "hash_ids": [at % kinds, kinds + at % kinds]} for at in range(8 * kinds)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {name: tmp_path / f"out.{name}" for name in ("html", "svg", "json")}
    outputs = ["--html", str(files["html"]), "--plot", str(files["svg"]), "--json", str(files["json"])]
    with pytest.raises(SystemExit) as end:
        main([command[0], str(trace), *command[1:], "--jobs", "1", *outputs])
    assert not end.value.code
    assert json.loads(files["json"].read_text())[0]["policy"] == "lru"
    page = files["html"].read_text()
    assert "Hit ratio by size" in page and said in page
    assert "<svg" in files["svg"].read_text()
    assert all(path.stat().st_mode & 0o077 for path in files.values()), "readable as the umask says"
