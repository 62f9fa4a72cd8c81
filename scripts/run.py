#!/usr/bin/env python3
"""Install vmtool into a private environment if need be, then run it: ``run.py stress --json``.

Every argument is vmtool's. Its exit code is this script's, stdout is its result; what the set-up
has to say goes to stderr. The environment is ``.venv`` in the checkout, or ``VMTOOL_VENV``.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python reads this far, and is told
    version = sys.version.split()[0]
    print("vmtool: error: Python 3.11 or newer is needed; this is", version, file=sys.stderr)
    sys.exit(4)

from typing import NoReturn

import _environment
import _process


def main() -> NoReturn:
    """Set up, then let vmtool take this process's place."""
    environment = _environment.ensure()
    _process.hand_over([str(environment.program("vmtool")), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(_process.run_guarded(main))
