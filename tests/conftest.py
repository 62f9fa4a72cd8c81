"""What every test shares: the summary of what this machine could not run."""

from collections import Counter

import pytest
from hypothesis import settings

# How long an example takes says nothing on a shared machine.
settings.register_profile("vmtool", deadline=None)
settings.load_profile("vmtool")

pytest_plugins = ["fakecuda.plugin"]

_MARKERS = ("gpu", "wine", "browser", "cc")


def pytest_collection_modifyitems(items):
    """Put the one long test first, so that the others fill the time beside it."""
    items.sort(key=lambda item: item.get_closest_marker("wine") is None)


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
