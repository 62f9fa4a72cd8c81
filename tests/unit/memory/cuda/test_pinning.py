"""Memory of the host that the driver pins, on the stand-in."""

import mmap

import pytest


def test_what_was_pinned_is_given_back_when_its_use_fails(fakecuda):
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.cuda.pinning import pinned

    context = DeviceContext(0)
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        import ctypes

        held = ctypes.c_char.from_buffer(page)
        with pytest.raises(KeyError), pinned(context, ctypes.addressof(held), mmap.PAGESIZE):
            assert fakecuda.report()["live"]["pinned"] == 1
            raise KeyError
        del held
    context.close()
