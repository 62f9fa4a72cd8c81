"""``python -m vmtool`` and the ``vmtool`` program: the command line, guarded while it is loaded."""

import sys


def entry() -> None:
    """Run the command line; Ctrl-C ends it with its own code, also before it can say so."""
    try:
        from vmtool.cli import entry as enter  # noqa: PLC0415 - this is what is guarded

        enter()
    except KeyboardInterrupt:
        sys.exit(130)  # vmtool.errors.ExitCode.INTERRUPTED, which may not be loaded yet


if __name__ == "__main__":
    entry()
