"""``limits lock`` on a device: memory of the host that its driver pins, on the stand-in."""

import mmap
from dataclasses import replace

import pytest
from printed import printed

from vmtool.errors import VmtoolError
from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import host_methods
from vmtool.probes.limits import find_limits
from vmtool.probes.question_process import Answer, answer
from vmtool.report.limits import to_text
from vmtool.results.limits import LimitsResult
from vmtool.units import MIB

SAFE = 32 * MIB
METHOD = host_methods()[0]


@pytest.fixture
def search(fakecuda, monkeypatch):
    """``search(pin_limit=0)``: what is found on a machine of which 32 MiB are safe to lock."""

    def ask(*question, stopping):
        try:
            return None if stopping() else answer(*question)
        except VmtoolError as error:
            return Answer(works=False, reached=0, error=str(error), cause=error.cause)

    facts = read_facts()
    small = replace(facts, memory=replace(facts.memory, available_bytes=2 * SAFE * 5 // 3))
    assert 2 * SAFE - MIB < small.safe_bytes <= 2 * SAFE
    monkeypatch.setattr("vmtool.probes.limits.read_facts", lambda: small)
    monkeypatch.setattr("vmtool.probes.limits.ask", ask)

    def run(stopping=lambda: False, **settings):
        fakecuda.reset(**settings)
        return find_limits("lock", "cuda", (METHOD,), lambda _tries: None, stopping=stopping)

    return run


def test_where_nothing_limits_it_the_search_ends_at_half_of_what_is_safe(search):
    (found,) = search().methods
    assert (found.method, found.outcome, found.refused) == (METHOD, "none", None)
    assert SAFE - MIB < found.reached == found.most <= SAFE
    assert found.tries == 1  # and one page, before
    assert found.per_gib_ns > 0


def test_the_limit_of_the_driver_is_found_to_the_page_and_named(search):
    limits = search(pin_limit=5 * MIB)
    (found,) = limits.methods
    assert (found.outcome, found.reached) == ("found", 5 * MIB)
    assert found.refused == 5 * MIB + mmap.PAGESIZE
    assert "cuMemHostRegister(" in found.error
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in found.error
    assert "RLIMIT_MEMLOCK does not limit it" in found.cause
    made = LimitsResult("cuda", (limits,), complete=True, found=True, device="a device")
    text = " ".join(printed(lambda console: to_text(made, console), 80))
    assert "limits: pin 5 MiB" in text
    assert "memory of the host pinned by one cuMemHostRegister" in text


@pytest.mark.parametrize("code", [800, 801])
def test_a_refusal_that_is_not_of_the_size_ends_the_search(search, code):
    (found,) = search(fail=f"cuMemHostRegister:1+={code}").methods
    assert (found.reached, found.refused, found.tries) == (None, mmap.PAGESIZE, 1)
    assert f"({code})" in found.error


def test_where_the_device_uses_the_page_tables_of_the_host_nothing_is_pinned(search):
    (found,) = search(attributes="100=1").methods
    assert "page tables" in found.cause
    assert "not pinned" in found.cause


def test_an_interrupted_search_is_left_out(search):
    assert search(stopping=lambda: True).methods == ()
