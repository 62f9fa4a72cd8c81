"""The pages as text: self-contained, escaped, and whole for every odd result."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from made_pages import NAMES
from made_pages import page_of as made_page
from stored_runs import checkpoint, eventful, method, run, several

from vmtool.compare.changes import compare
from vmtool.report.compare_page import to_html
from vmtool.report.stress_page import settings_rows
from vmtool.report.stress_page import to_html as stress_page
from vmtool.results.stress import StressSettings


def page_of(result):
    return stress_page(result, command=["vmtool", "stress"])


SIDES = several(5), several(5, seed=2, factor=1.5)


@pytest.mark.parametrize(
    "page",
    [
        page_of(eventful()),
        page_of(run()),
        to_html(*SIDES, compare(*SIDES), ["vmtool", "compare"]),
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


@pytest.mark.parametrize("name", NAMES)
def test_the_cells_of_a_page_are_words_and_no_names_of_fields(name, tmp_path):
    cells = re.findall(r"<td[^>]*>(.*?)</td>", made_page(name, tmp_path))
    raw = re.compile(r"True|False|None|.*_(?:bytes|ns)|[a-z]+_[a-z_]+|\d{8,}")
    if name == "kv-estimate":  # its cells name the fields of config.json that values come from
        raw = re.compile(r"True|False|None|.*_(?:bytes|ns)|\d{8,}")
    assert [cell for cell in cells if raw.fullmatch(cell)] == []


def test_a_page_shows_the_settings_that_are_set_in_words_and_units():
    settings = StressSettings(
        huge=True, node=0, duration_ns=10**9, cycles=12_000, granule_bytes=2 << 20, seed=571254839
    )
    shown = dict(settings_rows(settings))
    assert shown["huge pages"] == "yes"
    assert shown["prefault"] == "no"
    assert shown["NUMA node"] == "0"
    assert (shown["duration"], shown["cycles"], shown["granule"]) == ("1.00 s", "12,000", "2 MiB")
    assert shown["seed"] == "571254839"
    assert not {"chunk", "reserved huge pages", "label", "injected faults"} & set(shown)


def test_a_page_shows_the_machine_as_the_text_reports_do():
    page = page_of(run())
    assert re.search(r">RAM</td><td[^>]*>8 GiB, 4 GiB available<", page)
    assert re.search(r">overcommit</td><td[^>]*>0 \(heuristic, ratio 50 %\)<", page)


def test_a_ledger_that_differs_is_drawn_apart_from_the_belief():
    page = page_of(run(method(), checkpoints=(checkpoint(1), checkpoint(2, observed=0))))
    charge = page.split("Commit charge of the reserved ranges")[1].split("</svg>")[0]
    lines = dict(re.findall(r'<polyline class="(\w+)" points="[^"]* [\d.]+,([\d.]+)"', charge))
    assert float(lines["first"]) == 148  # on the zero line
    assert float(lines["second"]) == 16  # at the top


def test_the_ranges_of_all_methods_together_are_one_section_whatever_their_order():
    points = [
        replace(checkpoint(i), method=("protect, fixed", "fixed, protect")[i // 10], run=i // 10)
        for i in range(20)
    ]
    page = page_of(run(method("fixed"), method("protect"), checkpoints=tuple(points)))
    assert re.findall("The reserved ranges with ([^<]*)<", page) == ["fixed, protect"]


def test_the_command_of_a_page_is_quoted_as_a_shell_wants_it():
    page = to_html(*SIDES, compare(*SIDES), ["vmtool", "compare", "--fail-on", "cycle.median>+20%"])
    assert "<code>vmtool compare --fail-on &#x27;cycle.median&gt;+20%&#x27;</code>" in page


def test_the_interval_of_a_tail_does_not_hide_the_cycle():
    found = compare(*SIDES)
    wide = [
        replace(change, low=0.01, high=90.0) if change.statistic == "p99" else change
        for change in found.changes
    ]
    page = to_html(*SIDES, replace(found, changes=tuple(wide)), ["vmtool", "compare"])
    assert page.count("<polygon") == 2 * sum(change.statistic == "p99" for change in wide)
    assert ">8×<" not in page  # noqa: RUF001
    assert "an arrow marks what lies beyond it" in page


def test_reports_write_percentages_in_one_way():
    golden = Path(__file__).parents[2] / "golden"
    texts = {file.name: file.read_text(encoding="utf-8") for file in golden.iterdir()}
    assert texts
    assert [name for name, text in texts.items() if re.search(r"[0-9]%", text)] == []
