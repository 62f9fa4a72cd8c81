"""The stand-in under the sanitizers: a fault of its own would look like one of vmtool's."""

import subprocess

import pytest
from fakecuda import build

pytestmark = pytest.mark.cc


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_self_test_passes_under_each_sanitizer(sanitizers):
    try:
        program = build.self_test(sanitizers)
    except build.CannotBuildError as exc:
        pytest.skip(str(exc))
    done = subprocess.run([program], capture_output=True, text=True, timeout=100, check=False)
    if "unexpected memory mapping" in done.stderr:  # a runtime older than this kernel's ASLR
        pytest.skip("this sanitizer runtime does not start on this kernel")
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == (0, "ok\n")
