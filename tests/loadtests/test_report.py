"""What a comparison writes: the table and the chart."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from loadtests.report import Comparison, chart, table


def measured(rate: float, disturbed: bool = False) -> dict[str, Any]:
    return {"requests_per_s": rate, "p50_ms": 1000 / rate, "p99_ms": 2000 / rate, "disturbed": disturbed}


@pytest.fixture
def found() -> Comparison:
    comparison = Comparison("embed: a <model> & more")
    for clients in (1, 32):
        for rate in (90.0, 110.0, 100.0):
            comparison.add("padserve", clients, measured(rate))
            comparison.add("slow", clients, measured(rate / 2))
            comparison.add("close", clients, measured(rate / 1.25, disturbed=clients == 1))
    comparison.differing["close"] = "cosine 0.98"
    comparison.failed["broken"] = "it did not start"
    return comparison


def test_a_row_has_medians_range_and_ratio(found: Comparison) -> None:
    rows = table(found).splitlines()
    assert "| slow | 32 | 50.0 | 45-55 | 20.0 | 40.0 | 2.00 |" in rows
    assert "| padserve | 1 | 100.0 | 90-110 | 10.0 | 20.0 | 1.00 |" in rows


def test_below_the_table_stands_what_to_beware_of(found: Comparison) -> None:
    text = table(found)
    assert "| close\\* | 1 |" in text
    assert "\\* close does not give the model's answers: cosine 0.98." in text
    assert "broken failed: it did not start" in text
    assert "Disturbed by other processes: 3 of 18 measurements." in text


def test_the_chart_is_well_formed_with_a_bar_for_each_row(found: Comparison) -> None:
    root = ElementTree.fromstring(chart(found))
    space = "{http://www.w3.org/2000/svg}"
    paper, *bars = root.findall(f"{space}rect")
    words = [text.text for text in root.findall(f"{space}text")]
    assert len(bars) == 6
    assert words[0] == "embed: a <model> & more"
    assert {"close*", "padserve", "slow", "1 clients, requests/s", "32 clients, requests/s"} <= set(words)
    width, height = float(paper.attrib["width"]), float(paper.attrib["height"])
    for bar in bars:
        assert 0 < float(bar.attrib["width"]) < width
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) <= height


def test_bars_are_as_long_as_the_rates_and_the_fastest_comes_first(found: Comparison) -> None:
    root = ElementTree.fromstring(chart(found))
    bars = [float(bar.attrib["width"]) for bar in root.findall("{http://www.w3.org/2000/svg}rect")[1:4]]
    assert bars == sorted(bars, reverse=True)
    assert bars[0] / bars[2] == pytest.approx(2, rel=0.01)
