#!/usr/bin/env python3
"""Install vmtool and its tools in a virtual environment if needed; run all checks and tests.

    test.py [--no-checks] [PYTEST ARGUMENTS]

The checks are those of ``scripts/check``. Without arguments pytest runs all tests on all cores. The
exit code is pytest's, or 1 if only a check failed. ``VMTOOL_WINE=1`` adds the tests that run the
Windows code under Wine (see ``tests/windows/rig``).
"""

import signal
import subprocess
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets this far
    print("vmtool: error: needs Python 3.11 or newer, not", sys.version, file=sys.stderr)
    sys.exit(4)

import _environment


def main(arguments: list[str]) -> int:
    """Return 0 if every check and every test passed."""
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    checks = "--no-checks" not in arguments
    arguments = [argument for argument in arguments if argument != "--no-checks"]
    root = _environment.ROOT
    python = str(_environment.ensure("check", "test"))
    # Ctrl-C reaches the children too; their exit codes say how they ended.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    failed = checks and subprocess.call([python, str(root / "scripts" / "check")])
    # A process a core, and all tests of a file in one of them.
    everything = ["--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder"]
    tests = subprocess.call([python, "-m", "pytest", *(arguments or everything)], cwd=root)
    if failed:
        print(
            "vmtool: error: a check failed (its output is above that of the tests)", file=sys.stderr
        )
    return tests or int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
