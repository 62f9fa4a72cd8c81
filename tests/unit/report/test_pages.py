"""The pages as text: self-contained, escaped, and whole for every odd result."""

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_pages import NAMES
from made_pages import page_of as made_page
from stored_runs import checkpoint, eventful, method, phase, run, several

from vmtool.cli.output import Output, claim
from vmtool.compare.runs import compare
from vmtool.errors import UsageError, VmtoolError, printable
from vmtool.report.chart import (
    WIDTH,
    RatioRow,
    Series,
    histogram_chart,
    ratio_chart,
    ratio_reach,
    timeline_chart,
)
from vmtool.report.compare_page import to_html
from vmtool.report.page import Markup, join, tag
from vmtool.report.stress_page import to_html as stress_page
from vmtool.stats import Histogram
from vmtool.units import format_size


def page_of(result):
    return stress_page(result, command=["vmtool", "stress"])


def comparison_of(before, after):
    return to_html(before, after, compare(before, after), ["vmtool", "compare"])


@pytest.mark.parametrize(
    "page",
    [
        page_of(eventful()),
        page_of(run()),
        comparison_of(several(5), several(5, seed=2, factor=1.5)),
    ],
    ids="abc",
)
def test_a_page_needs_nothing_but_itself(page):
    assert re.findall(r"(?:src|href|url|@import)\s*[=(](?!.data:application/json)", page) == []
    assert "<script" not in page
    assert "default-src 'none'" in unescape(page)
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(re.findall("<svg", page)) == len(re.findall("</svg>", page))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_begins_with_its_date_machine_and_one_verdict(name, tmp_path):
    page = made_page(name, tmp_path)
    title, place, verdict = re.search(
        r'<title>(.*?)</title>.*</h1><p class="soft">(.*?)</p><p class="state[^"]*">(.*?)</p>',
        page,
        re.DOTALL,
    ).groups()
    assert title.startswith(f"vmtool {name.removesuffix('-all')}: ")
    for text in (title, place):
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d.* UTC", text)
    words = {"kv-replay": "simulated", "kv-estimate": "calculated", "fleet": "40 machines"}
    assert words.get(name, "A, 2 processors, 8 GiB of RAM") in place
    assert re.search(r"\d", verdict)
    assert page.count('class="state') == 1
    for part in ("How to read this", "Glossary", f"vmtool-{name.removesuffix('-all')}.json"):
        assert part in page


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped(text, value):
    made = tag("p", text, title=value)
    inner = re.fullmatch(r'<p title="([^"<>]*)">([^<>]*)</p>', made, re.DOTALL)
    spelled = ["\n".join(map(printable, each.split("\n"))) for each in (value, text)]
    assert [unescape(inner[1]), unescape(inner[2])] == spelled


def test_control_characters_are_spelled_out_in_text_and_attributes():
    assert tag("p", "a\x1b[2J\nb\u202e", title="\x07") == (
        '<p title="\\x07">a\\x1b[2J\nb\\u202e</p>'
    )


def test_markup_is_not_escaped_twice():
    assert tag("b", tag("i", "a<b")) == "<b><i>a&lt;b</i></b>"
    assert isinstance(join("a", Markup("<br>")), Markup)
    assert (
        tag("line", stroke_width=1.2345, x=None, class_="a")
        == '<line stroke-width="1.23" class="a"></line>'
    )


def shape_values(chart, attribute):
    return [float(value) for value in re.findall(rf' {attribute}="(-?[\d.]+)"', chart)]


@settings(max_examples=100)
@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=30))
def test_bars_of_any_samples_stay_inside_the_chart_and_hold_all_of_them(samples):
    histogram = Histogram()
    histogram.extend(samples)
    chart = histogram_chart("x", [("first", histogram.data())], [("max", max(samples))])
    bars = re.findall(r'<rect class="first"[^>]*>', chart)
    assert 1 <= len(bars) <= 40
    for name, limit in (("x", 300), ("y", 170), ("x1", 300), ("height", 170)):
        assert all(0 <= value <= limit for value in shape_values(chart, name))


def test_bar_heights_are_shares_of_the_samples():
    data = phase("commit", [100_000] * 30 + [400_000] * 10).histogram
    chart = histogram_chart("x", [("first", data)])
    left = [h for h, x in zip(*_bars(chart), strict=True) if x < 150]
    right = [h for h, x in zip(*_bars(chart), strict=True) if x >= 150]
    assert sum(left) == pytest.approx(3 * sum(right), rel=0.03)


def _bars(chart):
    bars = "".join(re.findall(r'<rect class="first"[^>]*>', chart))
    return shape_values(bars, "height"), shape_values(bars, "x")


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 62), st.none() | st.integers(-(1 << 62), 1 << 62)),
        max_size=12,
    )
)
def test_a_timeline_of_any_values_stays_inside_the_chart(points):
    chart = timeline_chart("x", [Series("first", sorted(points, key=lambda p: p[0]))], format_size)
    for text in re.findall(r'points="([^"]*)"', chart):
        for pair in text.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 300
            assert 0 <= y <= 170


def test_an_unknown_reading_breaks_the_line_and_one_point_draws_nothing():
    points = [(0, 1), (1, 2), (2, None), (3, 2), (4, 1)]
    chart = timeline_chart("x", [Series("first", points)], str)
    assert chart.count("<polyline") == 2
    lone = timeline_chart("x", [Series("first", [(0, 1), (1, None), (2, 5), (3, None)])], str)
    assert lone.count("<polyline") == 2
    assert timeline_chart("x", [Series("first", [(0, None)])], str) == ""


@pytest.mark.parametrize(
    "change", [(1.0, None, None), (1e-9, 0.0, 0.0), (1e9, 1e8, 1e10), (1.1, 0.9, 1.3)]
)
def test_an_interval_of_any_size_stays_inside_the_chart(change):
    rows = [RatioRow("x", *change, "soft", "words"), RatioRow("y", 1.0, 0.99, 1.01, "soft", "w")]
    chart = ratio_chart("x", rows, 0.05, ratio_reach([*change, 0.99, 1.01]))
    for name in ("x1", "x2", "cx"):
        assert all(0 <= value <= WIDTH for value in shape_values(chart, name))
    assert "<title>words</title>" in chart


def test_a_ledger_that_differs_is_drawn_apart_from_the_belief():
    page = page_of(run(method(), checkpoints=(checkpoint(1), checkpoint(2, observed=0))))
    charge = page.split("Commit charge of the reserved ranges")[1].split("</svg>")[0]
    lines = dict(re.findall(r'<polyline class="(\w+)" points="[^"]* [\d.]+,([\d.]+)"', charge))
    assert float(lines["first"]) == 148  # on the zero line
    assert float(lines["second"]) == 16  # at the top


def test_the_ticks_of_an_axis_of_time_share_a_unit():
    chart = timeline_chart("x", [Series("first", [(0, 1), (1_900_000_000, 2)])], str)
    assert re.findall(r">([\d.]+ m?s)</text>", chart) == ["0 s", "0.5 s", "1 s", "1.5 s"]


NO_FILES = ["none/a.html", ".", "a\0b", "x" * 300, "file/a.html"]


@pytest.mark.parametrize("name", NO_FILES)
def test_a_name_that_no_file_can_have_is_wrong_usage(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write") as caught:
        claim(f"{tmp_path}/{name}")
    assert caught.value.hint
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="where not even root writes: Linux")
def test_a_file_that_the_platform_refuses_is_a_failed_call():
    with pytest.raises(VmtoolError, match="cannot write") as caught:
        claim("/sys/kernel/vmtool.html")
    assert caught.value.exit_code == 1


def test_claiming_a_file_that_is_not_there_leaves_none(tmp_path):
    claim(str(tmp_path / "a.html"))
    assert list(tmp_path.iterdir()) == []


def test_claiming_a_link_to_a_file_that_is_not_there_leaves_the_link(tmp_path):
    link = tmp_path / "link"
    try:
        link.symlink_to("target")
    except OSError as error:
        pytest.skip(f"links cannot be made here: {error}")
    claim(str(link))
    assert list(tmp_path.iterdir()) == [link]


def test_a_loop_of_links_is_named(tmp_path):
    link = tmp_path / "link"
    try:
        link.symlink_to(link)
    except OSError as error:
        pytest.skip(f"links cannot be made here: {error}")
    with pytest.raises(UsageError, match="cannot write"):
        claim(str(link))


def test_half_a_character_is_saved_escaped(tmp_path):
    path = tmp_path / "a.html"
    Output().save(str(path), lambda: "a\udcff")
    assert path.read_bytes() == b"a\\udcff"


def test_claiming_a_file_keeps_what_is_in_it(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("old", encoding="utf-8")
    claim(str(path))
    assert path.read_text(encoding="utf-8") == "old"
