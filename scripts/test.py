#!/usr/bin/env python3
"""Install vmtool and its tools into a private environment if need be; run all checks and tests.

    test.py [--no-checks] [PYTEST ARGUMENTS]

The checks are those of ``scripts/check`` and run first; ``--no-checks`` leaves them out. All other
arguments go to pytest, which runs in the checkout, so paths are relative to it. The tests run
whatever the checks say; the exit code is pytest's, or 1 if only the checks failed. The
environment is ``.venv`` in the checkout, or ``VMTOOL_VENV``. ``VMTOOL_WINE=1`` adds the tests that
run the Windows code under Wine (see ``scripts/windows_rig.py``).
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python reads this far, and is told
    version = sys.version.split()[0]
    print("vmtool: error: Python 3.11 or newer is needed; this is", version, file=sys.stderr)
    sys.exit(4)

import _environment
import _process


def main() -> int:
    """Return 0 if every check and every test passed."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    root = _environment.ROOT
    python = str(_environment.ensure(("check", "test")).python)
    checks = 0
    if "--no-checks" in arguments:
        arguments.remove("--no-checks")
    else:
        checks = _process.run_child([python, str(root / "scripts" / "check")])
    if not arguments:  # all tests: a process for each core, and a file's tests in one of them
        arguments = ["--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder"]
    tests = _process.run_child([python, "-m", "pytest", *arguments], cwd=root)
    if checks:
        print("vmtool: error: a check failed: see above the tests", file=sys.stderr)
    return tests or checks


if __name__ == "__main__":
    sys.exit(_process.run_guarded(main))
