#!/usr/bin/env python3
"""Install vmtool in a virtual environment if needed and run it: ``run.py stress --json``."""

import os
import signal
import subprocess
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets this far
    print("vmtool: error: needs Python 3.11 or newer, not", sys.version, file=sys.stderr)
    sys.exit(4)

import _environment

command = [str(_environment.ensure()), "-P", "-m", "vmtool", *sys.argv[1:]]
if sys.platform == "win32":  # there exec returns to the shell at once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it too
    sys.exit(subprocess.call(command))
else:
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted
