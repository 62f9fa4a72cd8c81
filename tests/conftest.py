"""What every test shares: the summary of what this machine could not run."""

from collections import Counter

pytest_plugins = ["fakecuda.plugin"]

_MARKERS = ("gpu", "wine", "browser", "cc")


def pytest_terminal_summary(terminalreporter):
    """Count the tests not run here, by what they would have needed, with the reason."""
    missing = Counter(
        (marker, report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", ())
        for marker in _MARKERS
        if marker in report.keywords and isinstance(report.longrepr, tuple)
    )
    for (marker, reason), count in sorted(missing.items()):
        terminalreporter.write_line(
            f"not run here: {count} {marker} test{'s'[: count > 1]} ({reason})"
        )
