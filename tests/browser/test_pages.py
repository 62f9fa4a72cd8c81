"""The pages in a real browser, on a phone and on a wide screen."""

import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser

import pytest
from made_pages import NAMES, estimate, fleet, page_of
from stored_runs import eventful

from vmtool.compare.changes import compare
from vmtool.compare.run_sets import StoredRun, set_of
from vmtool.histograms import Histogram
from vmtool.kv.packing.policies import POLICIES
from vmtool.report.compare_page import to_html
from vmtool.report.page import Markup, figure, grid
from vmtool.report.page import page as whole_page
from vmtool.report.stress_page import to_html as stress_page
from vmtool.report.svg_chart import RatioRow, histogram_chart, ratio_chart
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.stress import Outcome

pytestmark = pytest.mark.browser

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
_HOSTILE = (
    "<script>document.title='owned'</script>\"'><img src=x onerror=\"document.title='owned'\">"
)


@pytest.fixture(scope="session")
def chromium():
    """The browser's program; skips where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium was found")
    return found


@pytest.fixture
def load(chromium, tmp_path):
    """Open a page and do one thing with it: ``--dump-dom`` or ``--screenshot=FILE``."""

    def run_browser(text, action, *flags):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        command = [chromium, *_FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, action]
        address = (tmp_path / "page.html").as_uri()
        result = subprocess.run([*command, address], capture_output=True, timeout=90, check=True)
        return result.stdout.decode()

    return run_browser


@pytest.fixture
def browse(load):
    """Open a page and return the DOM that the browser makes of it."""
    return lambda text: load(text, "--dump-dom", "--window-size=1280,1200")


@pytest.fixture
def corner(load, tmp_path):
    """Open a page and return the colour of its upper left corner."""

    def take(text, *flags):
        shot = tmp_path / "page.png"
        load(text, f"--screenshot={shot}", "--window-size=500,60", *flags)
        return Pixels(shot.read_bytes()).at(2, 2)

    return take


class Pixels:
    """The pixels of a PNG as Chromium writes it: eight bits a channel, not interlaced."""

    def __init__(self, data):
        self.width, self.height, depth, kind = struct.unpack(">IIBB", data[16:26])
        assert depth == 8
        self.channels = {2: 3, 6: 4}[kind]
        packed, position = b"", 8
        while position < len(data):
            size, name = struct.unpack(">I4s", data[position : position + 8])
            if name == b"IDAT":
                packed += data[position + 8 : position + 8 + size]
            position += 12 + size
        self.rows = self._unfilter(zlib.decompress(packed))

    def _unfilter(self, raw):
        size, step = self.width * self.channels, self.channels
        above, rows = bytearray(size), []
        for start in range(0, len(raw), size + 1):
            kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + size])
            for i in range(size) if kind else ():
                left = line[i - step] if i >= step else 0
                corner = above[i - step] if i >= step else 0
                up = above[i]
                nearest = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
                line[i] = (line[i] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
            rows.append(line)
            above = line
        return rows

    def at(self, x, y):
        start = x * self.channels
        return tuple(self.rows[y][start : start + 3])


class Dom(HTMLParser):
    """What the browser's DOM holds: elements, their attributes, and the text outside of styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self._stack = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self._stack.append(tag)

    def handle_endtag(self, tag):
        if tag in self._stack:
            while self._stack.pop() != tag:
                pass

    def handle_data(self, data):
        if "style" not in self._stack:
            self.text += data

    def count(self, name, style=None):
        return sum(
            t == name and (style is None or a.get("class") == style) for t, a in self.elements
        )


@pytest.fixture(scope="session")
def page_named(tmp_path_factory):
    """The page of a command by its name, made once."""
    return cache(lambda name: page_of(name, tmp_path_factory.mktemp("page")))


@pytest.fixture
def run_page(page_named):
    return page_named("stress")


@pytest.fixture
def comparison_page(page_named):
    return page_named("compare")


# How wide a page is against its window, each text of a chart against the chart's box and the other
# texts. The page's own policy would refuse the script: so the policy is taken out for this test alone.
_MEASURE = """<script>
let outside = 0, overlapping = 0;
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
  texts.forEach((a, i) => {
    if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1)
      outside++;
    for (const b of texts.slice(i + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) overlapping++;
    }
  });
}
const wider = document.documentElement.scrollWidth > innerWidth;
document.title = [innerWidth, wider, outside, overlapping].join();
</script>"""


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_page_scrolls_sideways_and_no_text_of_a_chart_overlaps_or_leaves_it(
    browse, page_named, width
):
    # Headless Chromium's window has a least width of 500; a frame has none. One start for all pages.
    # Without its charset Chromium guesses one from as much as it has read, sometimes not UTF-8.
    frames = '<meta charset="utf-8">'
    for name in NAMES:
        # What is folded has no boxes.
        page = page_named(name).replace("<details>", "<details open>")
        page = re.sub(r'<meta http-equiv="[^>]*>', "", page)
        page = page.replace("</body>", f"{_MEASURE}</body>")
        frames += (
            f'<iframe srcdoc="{escape(page)}" style="width:{width}px;height:800px;border:0" '
            f"onload=\"document.title+='{name} '+this.contentDocument.title+';'\"></iframe>"
        )
    found = re.search("<title>(.*?)</title>", browse(frames))[1].split(";")
    assert sorted(found) == sorted(["", *(f"{name} {width},false,0,0" for name in NAMES)])


def test_no_tick_at_the_end_of_an_axis_leaves_its_chart(browse):
    charts = ""
    for top in range(20_000_000, 23_000_000, 100_000):  # 20 ms at each place near the end
        samples = Histogram()
        samples.extend([1_000_000, top])
        charts += figure("chart", histogram_chart("chart", [("first", samples.data())]))
    row = RatioRow("release median", 1.1, 1.0, 1.2, "soft", "words")
    ratios = [
        figure("chart", ratio_chart("chart", [row], 0.05, tick * (1 + near / 500)))
        for tick in (1.25, 1.5, 2, 3, 4)
        for near in range(12)
    ]
    text = re.sub(
        r'<meta http-equiv="[^>]*>', "", whole_page("ticks", grid([Markup(charts)]), *ratios)
    )
    found = re.search("<title>(.*?)</title>", browse(text.replace("</body>", f"{_MEASURE}</body>")))
    assert found[1].split(",", 1)[1] == "false,0,0"


def test_the_page_of_a_run_shows_checks_histograms_and_all_four_counters(browse, run_page):
    dom = Dom(browse(run_page))
    assert dom.count("svg") == 6 + 4 + 3  # the mappings of the process have one reading: no chart
    assert dom.count("polyline", "second") == 4
    assert dom.count("rect", "first") > 6 * 10
    for text in (
        "checks: 1 passed, 1 not done: zero",
        "contents",
        "Address space",
        "Commit charge",
    ):
        assert text in dom.text
    for text in (
        "Resident",
        "Mappings",
        "transparent huge pages",
        "resident memory went from",
        "median 180 µs",
    ):
        assert text in dom.text


def test_the_page_of_a_comparison_shows_changes_intervals_and_gates(browse, comparison_page):
    dom = Dom(browse(comparison_page))
    assert dom.count("svg", "ratios") == 1
    assert dom.count("g", "bad") == 7
    assert "slower: the whole cycle of fixed +" in dom.text
    assert "✗ --fail-on commit.median>+20%" in dom.text
    assert "✓ --fail-on touch.p50>+90%" in dom.text
    assert "page size" in dom.text


def test_the_page_of_an_estimate_shows_the_answer_the_packing_and_the_figures(browse):
    dom = Dom(browse(estimate(_HOSTILE)))
    assert dom.count("p", "state") == 1
    assert dom.count("rect", "first") == dom.count("rect", "second") == len(POLICIES)
    assert dom.count("img") == dom.count("script") == 0
    for text in ("60 GiB of KV memory, after 20 GiB of weights, holds", "token-major", "linear_"):
        assert text in dom.text


def test_the_page_of_a_fleet_names_what_differs_and_its_reason(browse):
    dom = Dom(browse(re.sub(r'<meta http-equiv="[^>]*>', "", fleet(_HOSTILE))))
    assert dom.count("svg") == dom.count("figure") == 3
    assert dom.count("script") == dom.count("img") == 0
    assert dom.count("rect", "second") >= 1
    for text in (
        "3 of 40 machines differ: gpu-node-0003",
        "Outliers: gpu-node-0003",
        "The only fact that it does not share: huge_pages.thp_mode never",
        "Two parts, 20 machines",
        "one value per machine: not decided",
        _HOSTILE,
    ):
        assert text in dom.text


_STREAM = re.compile(rb"stream\r?\n")
_SIZE = re.compile(rb"/F\d+ ([\d.]+) Tf")
#: Of headings in print, in pixels: 14, 11 and 9.5 points.
_HEADINGS = {round(points * 4 / 3, 1) for points in (14, 11, 9.5)}


def text_sizes(pdf):
    """For each page of *pdf* the sizes of its text, in the order of the document."""
    for found in _STREAM.finditer(pdf):
        try:
            content = zlib.decompressobj().decompress(pdf[found.end() :])
        except zlib.error:
            continue
        if b">>BDC" in content:
            yield [round(float(size), 1) for size in _SIZE.findall(content)]


@pytest.mark.parametrize("page", NAMES)
def test_print_takes_two_pages_and_leaves_no_heading_at_a_foot(load, page_named, page, tmp_path):
    file = tmp_path / "page.pdf"
    load(page_named(page), f"--print-to-pdf={file}", "--no-pdf-header-footer")
    pages = list(text_sizes(file.read_bytes()))
    assert 1 <= len(pages) <= 2
    assert pages[0][0] == max(_HEADINGS)
    assert not {sizes[-1] for sizes in pages} & _HEADINGS


def test_a_dark_screen_gets_a_dark_page(corner, run_page):
    assert min(corner(run_page)) > 200
    assert max(corner(run_page, "--blink-settings=preferredColorScheme=0")) < 60


def test_a_hostile_result_stays_text(browse):
    result = eventful(machine={_HOSTILE: {"x": _HOSTILE}})
    result = replace(
        result,
        outcome=Outcome.COMPLETE,
        checks=(Check(_HOSTILE, CheckOutcome.FAILED, {"reason": _HOSTILE}),),
        methods=tuple(replace(m, method=_HOSTILE) for m in result.methods),
        failures=tuple(replace(f, call=_HOSTILE, message=_HOSTILE) for f in result.failures),
        accidents=tuple(replace(a, signal=_HOSTILE, cause=_HOSTILE) for a in result.accidents),
        settings=replace(result.settings, backing=_HOSTILE, inject=(_HOSTILE,)),
    )
    stored = StoredRun(_HOSTILE, (_HOSTILE,), _HOSTILE, result)
    other = replace(stored, result=replace(result, machine={}))
    sides = set_of(_HOSTILE, [stored]), set_of(_HOSTILE, [other])
    pages = [
        stress_page(result, command=[_HOSTILE]),
        to_html(*sides, compare(*sides), [_HOSTILE]),
    ]
    for page in pages:
        # Without the policy, so that only the escaping stands between the text and the browser.
        dom = browse(re.sub(r'<meta http-equiv="[^>]*>', "", page))
        seen = Dom(dom)
        assert seen.count("script") == seen.count("img") == 0
        assert not [a for _, attributes in seen.elements for a in attributes if a.startswith("on")]
        assert _HOSTILE in seen.text
        assert "<title>vmtool" in dom
