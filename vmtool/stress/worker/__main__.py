"""The process that may die: it takes a plan from stdin and writes its results to stdout.

``python -m vmtool.stress.worker JOURNAL``; the plan is the first line of stdin, ``go`` the second.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from vmtool.errors import VmtoolError
from vmtool.json_documents import decode
from vmtool.memory.children import prepare_child
from vmtool.memory.threads import start_thread
from vmtool.stress.journal import Journal
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerPlan, encode
from vmtool.stress.worker.session import Session

#: The first call may hang, and the parent can end meanwhile. On Windows a read that waits holds up
#: other threads that look at the same pipe, as the C runtime of a library does when it is loaded.
_LISTENS_EARLY: Final = sys.platform != "win32"


def main(arguments: list[str]) -> int:
    """Run the plan that stdin brings."""
    prepare_child()
    gc.disable()  # nothing in the loop makes cycles; a collection would land in some phase
    plan = decode(WorkerPlan, json.loads(sys.stdin.readline())["value"])
    with Journal(Path(arguments[0]), plan.settings.threads) as journal:
        # Neither sends while the other does: snapshots are taken while every thread waits, and
        # one checkpoint after the other.
        session = Session(
            plan,
            journal,
            snapshot=_send_so_far,
            record=lambda checkpoint: _send("checkpoint", checkpoint),
        )
        ordered = threading.Event()
        try:
            if _LISTENS_EARLY:
                start_thread(_listen, session, ordered)
            session.prepare()
            if not _LISTENS_EARLY:
                start_thread(_listen, session, ordered)
        except VmtoolError as error:
            _send_error(error)
            return 0
        _send("ready")
        ordered.wait()
        session.run()
        _send("report", session.close())
    return 0


def _listen(session: Session, ordered: threading.Event) -> None:
    """Follow the parent's orders, ``go`` and ``stop``; end at once when the parent is gone."""
    for line in sys.stdin:
        if line == "stop\n":
            session.stop()
        ordered.set()
    os._exit(1)


def _send_so_far(session: Session) -> None:
    for part in session.parts_so_far():
        _send("phase" if isinstance(part, PhaseSoFar) else "snapshot", part)
    # Between rounds, where it costs no phase anything: a collection also empties the free lists
    # of tuples, which fill up to 2,000 of each size and would look like a leak.
    gc.collect()


def _send_error(error: VmtoolError) -> None:
    kind = type(error).__name__
    _send("error", WorkerError(int(error.exit_code), kind, str(error), error.cause, error.hint))


def _send(message: str, value: Any = None) -> None:
    sys.stdout.write(encode(message, value))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
