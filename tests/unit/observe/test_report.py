import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rolloutpipe_core.config.models import ModelConfig, RunConfig
from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.report import build_report, report_json, write_report
from rolloutpipe_core.observe.report_html import report_html
from rolloutpipe_core.observe.timeline import Timelines
from rolloutpipe_core.observe.timeline_svg import timeline_svg

CONFIG = RunConfig(run="walk", model=ModelConfig(path="builtin:pointer-walk"))
VOID = {"meta", "input", "br", "link", "img"}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed, and on anything that would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("link", "img", "iframe")
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def report_of(history):
    return build_report(CONFIG, Timelines(history.events), made_ms=1_795_984_219_864)


def test_json_has_what_the_picture_shows(undisturbed):
    data = report_json(report_of(undisturbed))
    assert (data["run"], data["schedule"], data["made"]) == ("walk", "cgp+fgd", "2026-11-29T20:30:19+00:00")
    assert [version["number"] for version in data["versions"]] == [1, 2]
    first = data["rounds"][0]
    assert (first["round"], first["weight_version"], first["reward_mean"]) == (0, 0, 0.5)
    assert (first["rollout_to_train_end_s"], first["round_period_s"], first["first_dispatch_s"]) == (13.0, 15.5, 5.0)
    assert first["waiting_ratio_eq4"] == pytest.approx(5 / 13)
    assert first["waiting_ratio_s51"] == pytest.approx(6 / 13)
    assert data["config"]["schedule"]["groups_per_round"] == 16


def test_files_are_whole_and_hold_the_same_rounds(undisturbed, tmp_path):
    write_report(report_of(undisturbed), tmp_path / "out" / "report.html", tmp_path / "out" / "report.json")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["round"] for row in data["rounds"]] == [0, 1]


def test_the_page_is_well_formed_and_loads_nothing(forty_rounds):
    page = report_html(report_of(forty_rounds))
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert page.count("<template data-round=") == 40
    assert "$" not in page.replace("${", "")


def test_only_so_many_groups_of_the_newest_rounds_are_drawn(forty_rounds, monkeypatch):
    report = report_of(forty_rounds)
    size = len(report.timelines[-1].groups)
    for most, drawn in ((3 * size, ["37", "38", "39"]), (1, ["39"])):
        monkeypatch.setattr("rolloutpipe_core.observe.report_html.DRAWN_GROUPS", most)
        page = report_html(report)
        assert re.findall('<template data-round="([0-9]+)"', page) == drawn
        assert f'data-round="{drawn[0]}">first</button>' in page
        assert page.count("<tr data-round=") == 40


def test_what_users_named_is_escaped(undisturbed):
    model = ModelConfig(path="<script>alert(1)</script>")
    report = build_report(RunConfig(run="walk", model=model), Timelines(undisturbed.events), made_ms=0)
    page = report_html(report)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_a_run_without_rounds_and_one_in_its_first_round_have_a_page(history):
    assert "No round was opened yet" in report_html(report_of(history))
    history.open(0, 0)
    history.group(0, "r000000-g0000", GroupState.DEFERRED, 0)
    assert "nothing measured yet" in report_html(report_of(history))
    history.round(1, 0, RoundState.GENERATING)
    history.serve("r000000-g0000", 1, 2, 3)
    assert "round 0" in report_html(report_of(history))


def test_a_stopped_run_says_why(undisturbed):
    undisturbed.run(40, "stopped", "12 of 16 groups ended unused")
    assert "Stopped: 12 of 16 groups ended unused" in report_html(report_of(undisturbed))


def test_values_that_are_not_finite_are_null(undisturbed):
    undisturbed.open(31, 2)
    undisturbed.step(32, 2, 0, [], skipped=True, metrics={"loss": float("nan")})
    assert report_json(report_of(undisturbed))["rounds"][2]["loss"] is None


def test_a_picture_of_its_own_is_xml_with_a_bar_for_each_span(undisturbed):
    timelines = Timelines(undisturbed.events)
    picture = timeline_svg(timelines.round(0), all_round_metrics(timelines.rounds())[0], "walk")
    root = ElementTree.fromstring(picture)
    bars = [rect.get("class") for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars.count("decode") == 4 + 1  # one more in the legend
    assert bars.count("ready") == 2 + 1  # groups 0 and 1 waited
    assert bars.count("train") == 3 + 1 and bars.count("train2") == 3  # an update: its bar and two groups
    words = "".join(root.itertext())
    assert "walk, round 0: cgp+fgd, sampled by v0" in words and "published" in words


def test_bars_stand_where_the_times_are(undisturbed):
    """From opening (0 s, x = 66) to publishing (15.5 s, x = 980): 58.97 a second; update 0 runs 6 to 9 s."""
    timelines = Timelines(undisturbed.events)
    picture = timeline_svg(timelines.round(0), all_round_metrics(timelines.rounds())[0], "walk")
    root = ElementTree.fromstring(picture)
    rects = [
        r
        for r in root.iter("{http://www.w3.org/2000/svg}rect")
        if r.get("class") == "train" and r.get("height") == "24"
    ]
    assert [(r.get("x"), r.get("width")) for r in rects] == [("419.8", "176.9")]
