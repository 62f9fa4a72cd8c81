"""Memory of the host that is registered with the stand-in (L1 to L3)."""

import ctypes
import mmap

import pytest

PAGE = mmap.PAGESIZE
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713


@pytest.fixture
def memory():
    """The address of eight pages of host memory."""
    with mmap.mmap(-1, 8 * PAGE) as pages:
        held = ctypes.c_char.from_buffer(pages)
        yield ctypes.addressof(held)
        del held


def test_a_range_is_registered_once_and_unregistered_by_its_base(rig, fakecuda, memory):
    rig.ok("cuMemHostRegister", memory, 4 * PAGE, 0)
    assert fakecuda.report()["live"]["pinned"] == 1
    assert rig.code("cuMemHostRegister", memory + PAGE, PAGE, 0) == ALREADY_REGISTERED
    assert rig.code("cuMemHostUnregister", memory + PAGE) == NOT_REGISTERED
    rig.ok("cuMemHostRegister", memory + 4 * PAGE, PAGE, 0)
    rig.ok("cuMemHostUnregister", memory)
    rig.ok("cuMemHostUnregister", memory + 4 * PAGE)
    assert rig.code("cuMemHostUnregister", memory) == NOT_REGISTERED
    assert [broken[:2] for broken in fakecuda.forgive()] == ["L2", "L3", "L3"]


@pytest.mark.parametrize(("pages", "flags"), [(0, 0), (1, 16)])
def test_nothing_and_unknown_flags_are_refused(rig, fakecuda, memory, pages, flags):
    assert rig.code("cuMemHostRegister", memory, pages * PAGE, flags) == 1
    assert [broken[:2] for broken in fakecuda.forgive()] == ["L1"]


def test_what_is_pinned_counts_together(fakecuda, memory):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", pin_limit=6 * PAGE)
    rig = Rig()
    rig.ok("cuMemHostRegister", memory, 4 * PAGE, 0)
    assert rig.code("cuMemHostRegister", memory + 4 * PAGE, 3 * PAGE, 0) == 2
    rig.ok("cuMemHostUnregister", memory)
    rig.ok("cuMemHostRegister", memory, 6 * PAGE, 0)
    rig.ok("cuMemHostUnregister", memory)
    rig.close()


def test_it_needs_a_context_and_memory_that_is_there(rig, fakecuda, memory):
    assert rig.code("cuMemHostRegister", 4 * PAGE, PAGE, 0) == 1
    assert [broken[:2] for broken in fakecuda.forgive()] == ["P1"]
    rig.ok("cuCtxSetCurrent", 0)
    assert rig.code("cuMemHostRegister", memory, PAGE, 0) == 201
