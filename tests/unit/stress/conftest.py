"""A stress session in this process, where a test can look at it and put faults into it."""

import pytest

from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.report.check_sentences import describe
from vmtool.results.stress import StressSettings
from vmtool.stress.journal import Journal
from vmtool.stress.messages import WorkerPlan
from vmtool.stress.parent.leaks import leak_checks, worker_slopes
from vmtool.stress.plan import live_limit, settle
from vmtool.stress.safe_memory import Room
from vmtool.stress.worker.session import Session
from vmtool.units import GIB, KIB, MIB


@pytest.fixture
def make():
    """Return a function that makes settings of a small run."""

    def settings(**options):
        values = {
            "methods": host_methods()[:1],
            "granule_bytes": 64 * KIB,
            "capacity_bytes": 2 * MIB,
            "seed": 7,
            "runs": 1,
            **options,
        }
        if "duration_ns" not in values:
            values.setdefault("cycles", 60)
        return settle(StressSettings(**values), open_backing(), Room(GIB))

    return settings


@pytest.fixture
def session(make, tmp_path):
    """Return a function that makes a session; what it reserves is given back."""
    made = []

    def start(snapshot=lambda _session: None, checkpoints=None, **options):
        settings = make(**options)
        journal = Journal(tmp_path / f"journal-{len(made)}", settings.threads)
        notes = []
        begun = Session(
            WorkerPlan(settings, 0), journal, snapshot, notes.append, **(checkpoints or {})
        )
        begun.notes = notes
        made.append(begun)
        return begun

    yield start
    for begun in made:
        for of_thread in begun.buffers:
            for item in of_thread:
                item.buffer.close()


@pytest.fixture
def run(session):
    """Return a function that runs a session to its end and returns the report."""

    def whole(**options):
        begun = session(**options)
        begun.prepare()
        begun.run()
        return begun.close()

    return whole


@pytest.fixture
def leaks():
    """Return a function that makes the leak checks of a session from its checkpoints."""

    def check(begun):
        slopes = worker_slopes(begun.notes, live_limit(begun.settings))
        return slopes, {check.name: check for check in leak_checks(slopes, begun.notes)}

    return check


@pytest.fixture
def failed():
    """Return a function that lists the checks of a report that failed."""
    return lambda report: {check.name: describe(check) for check in report.checks if check.failed}


@pytest.fixture
def always():
    """The options of a session that takes a checkpoint after every operation."""
    return {"spacing": 0, "first_ns": 0}
