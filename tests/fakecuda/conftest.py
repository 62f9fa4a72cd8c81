"""What the stand-in's own tests share."""

import pytest


@pytest.fixture
def rig(fakecuda):
    """A context and a reservation on the stand-in with granules of 64 KiB; see rig.py."""
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", devices=2, poison=0xA5, memory="16MiB")
    made = Rig()
    yield made
    made.close()
