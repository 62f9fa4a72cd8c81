"""The granule is tried, and a platform that answers differently is detected."""

import sys

import pytest

from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import read_process
from vmtool.probes.granule_checks.prove import prove_granularity
from vmtool.results.check_outcomes import CheckOutcome


def test_the_host_proves_its_granule_and_gives_everything_back():
    backing = open_backing()
    prove_granularity(backing)
    before = read_process()
    proofs = prove_granularity(backing)
    assert all(proof.outcome is CheckOutcome.PASSED for proof in proofs)
    assert [proof.values["accepted"] for proof in proofs if proof.values["who"] == "vmtool"] == [
        True
    ] * 2 + [False] * 4
    after = read_process()
    if after.mappings is not None:
        assert abs(after.mappings - before.mappings) <= 1


@pytest.mark.skipif(sys.platform == "win32", reason="asks a POSIX kernel")
@pytest.mark.parametrize(
    ("method", "call"), [("fixed", "mmap"), ("protect", "mprotect"), ("advise", "mprotect")]
)
def test_the_kernel_is_tried_with_the_call_that_commits(method, call):
    proofs = [
        p for p in prove_granularity(open_backing(method=method)) if p.values["who"] == "kernel"
    ]
    assert {proof.name.split()[0] for proof in proofs} == {call}
    refused = [proof.values["answer"] for proof in proofs if not proof.values["accepted"]]
    assert len(refused) == 2
    assert all(answer.startswith("EINVAL (22)") for answer in refused)


class Lenient:
    """A backing that takes any offset: what a wrong granule would look like."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    name = "lenient"

    def commit(self, reservation, offset, nbytes):
        pass

    def release(self, reservation, offset, nbytes):
        pass


def test_a_backing_that_takes_half_a_granule_is_found_out():
    proofs = prove_granularity(Lenient(open_backing()))
    assert [not proof.failed for proof in proofs] == [True, True, False, False, False, False]
