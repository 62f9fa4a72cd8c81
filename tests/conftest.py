"""What every test shares: golden files, and the summary of what this machine could not run."""

import difflib
import gc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from printed import printed

# How long an example takes says nothing on a shared machine.
settings.register_profile("vmtool", deadline=None)
settings.load_profile("vmtool")

pytest_plugins = ["fakecuda.plugin", "programs"]

_MARKERS = ("gpu", "wine", "browser", "cc")


def pytest_collection_modifyitems(items):
    """Put the one long test first, so that the others fill the time beside it."""
    items.sort(key=lambda item: item.get_closest_marker("wine") is None)


def pytest_collection_finish():
    """Let the collector of garbage leave alone what is there already: many tests ask it for all."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/*.txt from the reports of this run instead of comparing them",
    )


@pytest.fixture
def golden(request):
    """Return a function that compares a whole report with ``tests/golden/NAME.txt``.

    ``golden(name, render)`` calls ``render(console)`` with a console of 80 columns without colour.
    After an intended change run the test with ``--update-golden`` and read the diff.
    """

    def check(name, render, *, width=80):
        text = "".join(f"{line}\n" for line in printed(render, width))
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != stored:
            diff = difflib.unified_diff(
                stored.splitlines(), text.splitlines(), path.name, "printed now", lineterm=""
            )
            pytest.fail(
                "\n".join(["the report changed (--update-golden accepts it):", *diff]),
                pytrace=False,
            )

    return check


def pytest_terminal_summary(terminalreporter):
    """Count the tests not run here, by what they would have needed, with the reason.

    A test can add a line of its own: ``record_property("summary", line)``.
    """
    missing = Counter(
        (marker, report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", ())
        for marker in _MARKERS
        if isinstance(report, pytest.TestReport)  # a module may be skipped as a whole
        and marker in report.keywords
        and isinstance(report.longrepr, tuple)
    )
    for (marker, reason), count in sorted(missing.items()):
        terminalreporter.write_line(
            f"not run here: {count} {marker} test{'s'[: count > 1]} ({reason})"
        )
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":  # the other phases repeat the properties
                for name, text in report.user_properties:
                    if name == "summary":
                        terminalreporter.write_line(text)
