"""Fixtures that put the stand-in driver under a test; ``tests/conftest.py`` loads this file."""

import contextlib
import ctypes
import os

import pytest
from fakecuda import build, control


def pytest_collection_finish(session):
    """Load the stand-in before a test can load a real driver, if one that will run needs it.

    A process has one driver. So where there is a GPU, the tests of it run apart (``-m gpu``).
    """
    wanted = any(
        "fakecuda" in getattr(item, "fixturenames", ()) or "standin" in item.nodeid
        for item in session.items
    )
    if wanted and not session.config.option.collectonly:
        with contextlib.suppress(build.CannotBuildError):
            control.FakeCuda().reset(devices=0)


@pytest.fixture(scope="session")
def fakecuda_lib():
    """The path of the stand-in's ``libcuda.so.1``; skips where it cannot be built."""
    try:
        return build.driver()
    except build.CannotBuildError as exc:
        pytest.skip(str(exc))


def _another_driver_is_loaded():
    """Whether this process has a ``libcuda.so.1`` already that is not the stand-in."""
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return not hasattr(loaded, "fakecuda_report")


@pytest.fixture
def fakecuda(fakecuda_lib):
    """The stand-in in this process, freshly reset; afterwards nothing may be held or broken.

    ``fakecuda.reset(devices=2, granularity="64KiB")`` starts anew with other settings.
    """
    if _another_driver_is_loaded():
        pytest.skip("a real CUDA driver is loaded in this process; run these tests apart")
    fake = control.FakeCuda()
    fake.reset()
    yield fake
    try:
        fake.assert_clean()
    finally:
        fake.reset(devices=0)  # the library stays loaded; later tests must not find a device


@pytest.fixture
def run_with_fakecuda(fakecuda_lib, tmp_path_factory):
    """``run_with_fakecuda(["granularity", "--json"], devices=2)``: the command on the stand-in."""

    def run(arguments, **settings):
        folder = tmp_path_factory.mktemp("reports")
        return control.run_python(["-m", "vmtool", *arguments], folder, **settings)

    return run


@pytest.fixture
def python_with_fakecuda(fakecuda_lib, tmp_path_factory):
    """``python_with_fakecuda(code, devices=0)``: a new interpreter on the stand-in."""

    def run(code, **settings):
        return control.run_python(["-c", code], tmp_path_factory.mktemp("reports"), **settings)

    return run
