"""The pages as text: self-contained, escaped, and whole for every odd result."""

import re
from dataclasses import replace
from html import unescape

import pytest
from made_pages import NAMES
from made_pages import page_of as made_page
from stored_runs import checkpoint, eventful, method, run, several

from vmtool.compare.changes import compare
from vmtool.report.compare_page import to_html
from vmtool.report.stress_page import to_html as stress_page


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
