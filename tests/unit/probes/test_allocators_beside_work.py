"""A range is mapped and unmapped while a device works, and both keep their contents; on the stand-in."""

from __future__ import annotations

import pytest

from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.driver import Driver
from vmtool.probes.allocators_beside_work import measure

MIB = 1 << 20


@pytest.mark.parametrize(("call", "intact"), [("read", (False, False)), ("fill", (True, False))])
def test_contents_that_are_not_what_was_written_beside_work_are_found(
    fakecuda, monkeypatch, call, intact
):
    fakecuda.reset(granularity="64KiB", poison=0xA5)
    real = DeviceCopies.read

    def wrong_in_the_middle(self, reservation, offset, into):
        real(self, reservation, offset, into)
        into[len(into) // 2] ^= 1

    changed = {"read": wrong_in_the_middle, "fill": lambda *_: None}
    monkeypatch.setattr(DeviceCopies, call, changed[call])
    result = measure(0, MIB, 20)
    assert result.cycles > 0
    assert (result.work_intact, result.range_intact) == intact


def test_a_fill_of_the_work_that_does_not_happen_is_seen(fakecuda, monkeypatch):
    """The word changes with each step, so what an earlier fill left is not mistaken for it."""
    fakecuda.reset(granularity="64KiB")
    real, fills = Driver.call, 0

    def some(self, name, *arguments):
        nonlocal fills
        fills += name == "cuMemsetD32Async"
        if name == "cuMemsetD32Async" and fills == 25:
            return None
        return real(self, name, *arguments)

    monkeypatch.setattr(Driver, "call", some)
    result = measure(0, MIB, 16)  # 1 + 16 alone, 16 beside
    assert (result.work_intact, result.range_intact) == (False, True)


def test_a_range_is_mapped_and_unmapped_beside_running_work(fakecuda):
    fakecuda.reset(granularity="64KiB")
    result = measure(0, MIB, 50)
    assert result.error is None
    assert result.cycles > 0
    assert (result.work_intact, result.range_intact) == (True, True)
    assert result.alone.steps == result.beside.steps == 50
    assert result.beside.max_ns >= result.beside.p99_ns >= result.beside.median_ns > 0


def test_a_device_lost_beside_work_is_reported(fakecuda, python_with_fakecuda):
    code = (
        "import dataclasses; from vmtool.probes.allocators_beside_work import run_beside_work\n"
        "print(dataclasses.asdict(run_beside_work(0, 2 << 20, steps=20)))"
    )
    done = python_with_fakecuda(code)
    assert "'lost': False" in done.stdout
    done = python_with_fakecuda(code, fail="cuMemUnmap:1=700")
    assert "'lost': True" in done.stdout
    assert "alone': {'steps': 20" in done.stdout  # what was measured before is kept


def test_a_device_lost_at_the_end_keeps_what_was_measured(fakecuda):
    fakecuda.reset(granularity="64KiB", fail="cuStreamDestroy:1=700")
    result = measure(0, MIB, 20)
    assert result.lost
    assert "cuStreamDestroy" in result.error
    assert result.alone.steps == result.beside.steps == 20
