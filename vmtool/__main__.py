"""``python -m vmtool`` and the ``vmtool`` program: the command line, guarded while it is loaded."""

import sys


def entry() -> None:
    """Run the command line; Ctrl-C ends it with its own code, also before it can say so."""
    try:
        from vmtool.cli.app import entry as enter  # noqa: PLC0415 - this is what is guarded

        enter()
    except KeyboardInterrupt:
        sys.exit(130)  # vmtool.errors.ExitCode.INTERRUPTED, which may not be loaded yet
    finally:
        # CPython ends by SIGINT, whatever the exit code, if an interruption left the last exec() of
        # a string; every dataclass is made with one.
        exec("")  # noqa: S102 - it runs nothing


if __name__ == "__main__":
    entry()
