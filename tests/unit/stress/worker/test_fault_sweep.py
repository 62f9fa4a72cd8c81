"""Every system call of a run fails in turn; each run ends with every invariant intact."""

import sys

import pytest

from vmtool.memory.backing_by_name import host_methods

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the sweep names POSIX calls")

#: One commit or release of each kind is enough: later ones are the same calls.
OPTIONS = {"cycles": 3, "pattern": "hole-punch", "verify": "full", "capacity_bytes": 4 * 65536}


def _counts(session, method, **options):
    """Return how often each call is made by a run without faults."""
    begun = session(methods=(method,), inject=("mmap:999999",), **OPTIONS, **options)
    begun.prepare()
    begun.run()
    begun.close()
    return begun.faults.counts


def _run(session, method, fault, **options):
    from vmtool.errors import VmtoolError

    begun = session(methods=(method,), inject=(fault,), **OPTIONS, **options)
    try:
        begun.prepare()
    except VmtoolError as error:
        for of_thread in begun.buffers:
            for item in of_thread:
                item.buffer.close()
        assert begun.faults.applied, error
        return None
    begun.run()
    report = begun.close()
    assert begun.faults.applied
    return report


@pytest.mark.parametrize(
    ("effect", "prefault"),
    [
        ("ENOMEM", False),
        ("EAGAIN", False),
        pytest.param(
            "ENOMEM",
            True,
            marks=pytest.mark.skipif(
                sys.platform != "linux", reason="pre-faulting is a Linux feature"
            ),
        ),
    ],
)
@pytest.mark.parametrize("method", host_methods())
def test_any_call_may_fail_and_every_invariant_holds(session, failed, method, effect, prefault):
    counts = _counts(session, method, prefault=prefault)
    assert counts["mmap"] >= 1
    for call, count in counts.items():
        for nth in range(1, count + 1):
            report = _run(session, method, f"{call}:{nth}={effect}", prefault=prefault)
            if report is not None:
                assert failed(report) == {}, f"{call}:{nth}={effect}"
                assert all(failure.injected for failure in report.failures)


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_when_every_further_call_fails_what_is_lost_is_quarantined_or_owned(
    session, failed, method
):
    call = "mmap" if method == "fixed" else "mprotect"
    counts = _counts(session, method)
    for nth in range(3, counts[call] + 1, 3):
        report = _run(session, method, f"{call}:{nth}+")
        assert failed(report) == {}, f"{call}:{nth}+"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all four counters")
@pytest.mark.parametrize(
    ("method", "call", "finds"),
    [("protect", "madvise", "zero"), ("advise", "madvise", "zero"), ("fixed", "mmap", "counters.")],
)
def test_a_platform_that_only_pretends_to_release_is_found_out(
    session, failed, method, call, finds
):
    """The call that releases in the middle of the run reports success and does nothing."""
    found = []
    for nth in range(2, _counts(session, method)[call] + 1):
        if method == "fixed" and _is_commit(nth):
            continue  # the write after a commit that was only pretended kills the process
        report = _run(session, method, f"{call}:{nth}=SKIP")
        found += failed(report)
    assert any(check.startswith(finds) for check in found)


def _is_commit(nth):
    """Tell whether the nth mmap of the sweep's plan commits: it reserves, then fills four."""
    kinds = _order()
    return kinds[nth - 2] if nth - 2 < len(kinds) else True


def _order():
    from random import Random

    from vmtool.stress.workloads import PATTERNS, Kind, Quota

    warm_up = PATTERNS["hole-punch"](4, 4, Quota(4), Random("7/0/0"))
    return [kind is Kind.COMMIT for kind, _, _ in warm_up]
