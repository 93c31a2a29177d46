from xml.etree import ElementTree

import pytest

from rolloutpipe_core.observe.chart_svg import Series, line_chart, stacked_bars
from rolloutpipe_core.observe.svg import Scale, element, nice_step


def test_elements_are_escaped_and_short():
    assert element("rect", x=1.04, class_="wait") == '<rect x="1" class="wait"/>'
    assert element("text", "a", aria_label='<"') == '<text aria-label="&lt;&quot;">a</text>'


@pytest.mark.parametrize(("least", "step"), [(0.3, 0.5), (1, 1), (1.1, 2), (7, 10), (0, 1), (30, 50)])
def test_nice_steps(least, step):
    assert nice_step(least) == pytest.approx(step)


def test_linear_scale():
    scale = Scale(0, 10, 100, 200)
    assert scale(5) == 150
    assert scale.ticks(5) == [0, 2, 4, 6, 8, 10]


def test_logarithmic_scale():
    scale = Scale(1e-6, 1e-2, 0, 400, log=True)
    assert scale(1e-4) == pytest.approx(200)
    assert scale.ticks() == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2])


def paths(picture):
    return [path.get("d") for path in ElementTree.fromstring(picture).iter("path")]


def test_an_unknown_value_leaves_a_gap():
    chart = line_chart("c", [0, 1, 2, 3, 4], [Series("s", "decode", [1.0, 2.0, None, 3.0, 4.0])])
    assert [path.count("L") for path in paths(chart)] == [1, 1]


def test_a_logarithmic_chart_leaves_out_zero():
    chart = line_chart("c", [0, 1, 2], [Series("s", "decode", [0.0, 1e-3, 1e-2])], log=True)
    assert [path.count("L") for path in paths(chart)] == [1]


def test_bars_are_stacked_and_incomplete_rounds_left_out():
    """Totals 4 and unknown: the bar's parts 1 and 3 share an edge."""
    lower, upper = Series("a", "wait", [1.0, 1.0]), Series("b", "train", [3.0, None])
    root = ElementTree.fromstring(stacked_bars("c", [0, 1], [lower, upper]))
    bars = [rect for rect in root.iter("rect") if rect.get("rx") is None and rect.get("class") in ("wait", "train")]
    assert len(bars) == 2
    top_of_lower = float(bars[0].get("y"))
    assert float(bars[1].get("y")) + float(bars[1].get("height")) == pytest.approx(top_of_lower, abs=0.2)
    assert float(bars[1].get("height")) == pytest.approx(3 * float(bars[0].get("height")), abs=0.4)


@pytest.mark.parametrize("rounds", [[], [0]])
def test_charts_without_values_say_so(rounds):
    empty = [Series("s", "decode", [None] * len(rounds))]
    assert "nothing measured yet" in line_chart("c", rounds, empty)
    assert "nothing measured yet" in stacked_bars("c", rounds, empty)
