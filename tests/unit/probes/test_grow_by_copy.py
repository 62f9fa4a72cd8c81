"""The same growth by copying, for comparison: what it copies, and what ends it."""

import mmap

from vmtool.errors import CallError
from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import open_backing
from vmtool.probes.grow import GrowPlan, run_growth
from vmtool.probes.grow_by_copy import CopiedBuffer
from vmtool.probes.grow_lengths import lengths
from vmtool.units import KIB, MIB

PAGE = mmap.ALLOCATIONGRANULARITY  # a granule: more than a page on Windows


def grow_and_copy(pattern="linear", to=2 * MIB, step=100 * KIB):
    plan = GrowPlan(tuple(lengths(pattern, to, step)), 64 * MIB, against_copying=True)
    return run_growth(open_backing(), plan, read_facts())[0]


def test_copying_goes_through_the_growing_steps_only():
    result = grow_and_copy("sawtooth", to=64 * PAGE, step=PAGE)
    copying = result.copying
    assert copying.steps == copying.planned_steps == result.growing.samples
    # By hand: each growing step copies the length before it.
    ups = [
        (a, b)
        for a, b in zip((0, *result.steps.length_bytes), result.steps.length_bytes, strict=False)
    ]
    assert copying.copied_bytes == sum(a for a, b in ups if b > a)
    assert copying.in_place_ns == sum(
        ns for ns, (a, b) in zip(result.steps.elapsed_ns, ups, strict=True) if b > a
    )


def test_a_refused_copy_ends_the_comparison_and_not_the_result(monkeypatch):
    real = CopiedBuffer.grow_to

    def refuse(self, nbytes, *, keep):
        if nbytes > MIB:
            raise CallError("mmap.mmap", "-1", code=12, symbol="ENOMEM")
        real(self, nbytes, keep=keep)

    monkeypatch.setattr(CopiedBuffer, "grow_to", refuse)
    result = grow_and_copy(to=2 * MIB, step=MIB // 4)
    assert result.complete
    assert (result.copying.steps, result.copying.planned_steps) == (4, 8)
    assert "ENOMEM" in result.copying.stopped


def test_copying_stops_at_its_time_limit(monkeypatch):
    monkeypatch.setattr("vmtool.probes.grow_by_copy.COPY_LIMIT_NS", 0)
    result = grow_and_copy()
    assert result.copying.steps == 1
    assert result.copying.stopped == "time limit"


def test_a_copied_buffer_keeps_the_given_bytes():
    buffer = CopiedBuffer()
    buffer.grow_to(2 * PAGE, keep=0)
    with buffer.view() as view:
        view[:] = b"x" * (2 * PAGE)
    buffer.grow_to(4 * PAGE, keep=PAGE)
    with buffer.view() as view:
        assert view.tobytes() == b"x" * PAGE + bytes(3 * PAGE)
    buffer.close()
    buffer.close()
