"""Reports as a test sees them: lines of a terminal of a width that the test chooses."""

import io

from vmtool.report.table import result_console


def printed(to_text, width=80):
    """Return the lines that *to_text* prints on a console of *width* columns."""
    file = io.StringIO()
    to_text(result_console(file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines()]
