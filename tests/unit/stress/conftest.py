"""A stress session in this process, where a test can look at it and put faults into it."""

import pytest

from vmtool.memory import host_methods, open_backing
from vmtool.stress.messages import WorkerPlan
from vmtool.stress.plan import Request, make_settings
from vmtool.stress.worker.journal import Journal
from vmtool.stress.worker.session import Session, close_session
from vmtool.units import GIB, KIB, MIB


@pytest.fixture
def make():
    """Return a function that makes settings of a small run."""

    def settings(**options):
        values = {
            "methods": host_methods()[:1],
            "safe_bytes": GIB,
            "granule_bytes": 64 * KIB,
            "capacity_bytes": 2 * MIB,
            "seed": 7,
            **options,
        }
        if "duration_ns" not in values:
            values.setdefault("cycles", 60)
        return make_settings(Request(**values), open_backing())

    return settings


@pytest.fixture
def session(make, tmp_path):
    """Return a function that makes a session; what it reserves is given back."""
    made = []

    def start(snapshot=lambda _session: None, **options):
        settings = make(**options)
        journal = Journal(tmp_path / f"journal-{len(made)}", settings.threads)
        notes = []
        begun = Session(WorkerPlan(settings, 0), journal, snapshot, notes.append)
        begun.notes = notes
        made.append((begun, journal))
        begun.journal = journal
        return begun

    yield start
    for begun, _ in made:
        for seats in begun.seats:
            for seat in seats:
                seat.buffer.close()


@pytest.fixture
def run(session):
    """Return a function that runs a session to its end and returns the report."""

    def whole(**options):
        begun = session(**options)
        begun.prepare()
        begun.run()
        return close_session(begun, begun.journal)

    return whole


@pytest.fixture
def failed():
    """Return a function that lists the checks of a report that failed."""
    return lambda report: {v.check: v.detail for v in report.verdicts if v.passed is False}
