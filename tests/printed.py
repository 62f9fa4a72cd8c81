"""Reports as a test sees them: lines of a terminal of a width that the test chooses."""

import io

from vmtool.report.console import result_console


def printed(to_text, width=80):
    """Return the lines that *to_text* prints on a console of *width* columns."""
    file = io.StringIO()
    console = result_console(file, width=width)
    console.legacy_windows = False  # such a console has a column less
    to_text(console)
    return [line.rstrip() for line in file.getvalue().splitlines()]
