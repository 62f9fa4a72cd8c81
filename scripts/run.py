#!/usr/bin/env python3
"""Install vmtool in a virtual environment if needed and run it: ``run.py stress --json``."""

import errno
import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets this far
    print("vmtool: error: needs Python 3.11 or newer, not", sys.version, file=sys.stderr)
    sys.exit(4)

try:
    import signal
    import subprocess

    import _environment

    command = [str(_environment.ensure()), "-P", "-m", "vmtool", *sys.argv[1:]]
except (MemoryError, SystemError, OSError, ImportError) as error:
    no_memory = isinstance(error, (MemoryError, SystemError)) or "map segment" in str(error)
    if not no_memory and getattr(error, "errno", None) != errno.ENOMEM:
        raise
    os.write(
        2,
        b"vmtool: error: not enough memory to load scripts/run.py\n"
        b"  hint: raise `ulimit -v` or `ulimit -d`, whichever is set, and run again\n",
    )
    os._exit(1)  # an ordinary exit would try to run and to write more

if sys.platform == "win32":  # there exec returns to the shell at once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it too
    sys.exit(subprocess.call(command))
else:
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted
