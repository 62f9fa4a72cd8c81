"""The pages in a real browser: what it makes of them, on a phone and on a wide screen."""

import html.parser
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace

import pytest
from stored_runs import MACHINE, eventful, gaussian, method, run, several

from vmtool.compare.assertions import parse_change
from vmtool.compare.runs import compare
from vmtool.compare.stored import StoredRun, set_of
from vmtool.kv import estimate as kv
from vmtool.kv import sources
from vmtool.kv.packing import POLICIES
from vmtool.report.compare_page import to_html
from vmtool.report.kv_page import to_html as kv_page
from vmtool.report.stress_page import to_html as stress_page
from vmtool.results.check import Check, CheckOutcome
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


class Dom(html.parser.HTMLParser):
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


def latencies(seed, *, slower=1.0):
    return {
        "commit": gaussian(seed, 180_000 * slower, 12_000),
        "touch": gaussian(seed + 1, 400_000, 12_000),
        "release": gaussian(seed + 2, 90_000, 12_000),
    }


@pytest.fixture(scope="module")
def run_page():
    result = run(method("fixed", **latencies(1)), method("protect", **latencies(4)))
    return stress_page(result, command=["vmtool", "stress"], version="1.0")


@pytest.fixture(scope="module")
def comparison_page():
    before = several(5)
    after = several(5, seed=2, factor=1.4, machine=MACHINE | {"page_bytes": 16384})
    gates = [parse_change("commit.median>+20%"), parse_change("touch.p50>+90%")]
    return to_html(before, after, compare(before, after, fail_on=gates), ["vmtool", "compare"])


@pytest.fixture(scope="module")
def estimate_page():
    model = sources.load("qwen3.5-27b")
    question = kv.Question(
        model,
        kv.choose_formats(model.dtype, key=None, value=None),
        kv.why_format(model, None, None),
        budget=kv.Budget(80 << 30, _HOSTILE, 20 << 30, 0, "as given"),
        context=32_768,
    )
    result = kv.answer_question(question, policies=POLICIES, explain=True)
    return kv_page(result, ["vmtool", "kv-estimate", _HOSTILE])


# A page that is wider than the screen is scrolled sideways; the browser tells in the title, by a
# script that the page's own policy would refuse: so the policy is taken out for this test alone.
_MEASURE = (
    "<script>document.title = [document.documentElement.scrollWidth, innerWidth].join()</script>"
)


@pytest.mark.parametrize("page", ["run_page", "comparison_page", "estimate_page"])
def test_a_phone_shows_the_page_without_scrolling_sideways(browse, request, page):
    text = request.getfixturevalue(page)
    measured = re.sub(r'<meta http-equiv="[^>]*>', "", text).replace(
        "</body>", f"{_MEASURE}</body>"
    )
    # Headless Chromium's window has a least width of 500; a frame has none.
    frame = measured.replace("&", "&amp;").replace('"', "&quot;")
    outer = (
        f'<iframe srcdoc="{frame}" style="width:390px;height:800px;border:0" '
        'onload="document.title=this.contentDocument.title"></iframe>'
    )
    dom = browse(outer)
    needed, offered = map(int, re.search(r"<title>(\d+),(\d+)</title>", dom).groups())
    assert offered == 390
    assert needed <= offered


# Each text of a chart against the chart's own box and against the chart's other texts.
_TEXTS = """<script>
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
document.title = [outside, overlapping].join();
</script>"""


@pytest.mark.parametrize("page", ["run_page", "comparison_page", "estimate_page"])
def test_no_text_of_a_chart_overlaps_another_or_leaves_its_box(browse, request, page):
    text = request.getfixturevalue(page)
    measured = re.sub(r'<meta http-equiv="[^>]*>', "", text).replace("</body>", f"{_TEXTS}</body>")
    dom = browse(measured)
    assert re.search(r"<title>(\d+),(\d+)</title>", dom).groups() == ("0", "0")


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
    for text in ("Resident", "Mappings", "thp_mode", "resident memory went from", "median 180 µs"):
        assert text in dom.text


def test_the_page_of_a_comparison_shows_changes_intervals_and_gates(browse, comparison_page):
    dom = Dom(browse(comparison_page))
    assert dom.count("svg", "ratios") == 1
    assert dom.count("g", "bad") == 7
    assert "slower: the whole cycle of fixed +" in dom.text
    assert "✗ --fail-on commit.median>+20%" in dom.text
    assert "✓ --fail-on touch.p50>+90%" in dom.text
    assert "page size in bytes" in dom.text


def test_the_page_of_an_estimate_shows_the_answer_the_packing_and_the_figures(
    browse, estimate_page
):
    dom = Dom(browse(estimate_page))
    assert dom.count("p", "state") == 1
    assert dom.count("rect", "first") == dom.count("rect", "second") == len(POLICIES)
    assert dom.count("img") == dom.count("script") == 0
    for text in ("60 GiB of KV memory, after 20 GiB of weights, holds", "token-major", "linear_"):
        assert text in dom.text


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
        stress_page(result, command=[_HOSTILE], version=_HOSTILE),
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
