"""The Windows code on Linux: the project's own tests by a Windows Python under Wine.

Results are Wine's, and are labelled so; they are not results of Windows.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

# Wine is slow, and most tests are of arithmetic, text and recorded files, which are the same on every
# platform: what calls the operating system is run there.
PATHS = (
    *("windows", "contract", "unit/memory", "unit/probes"),
    *("unit/machine/doctor/test_windows.py", "unit/machine/test_run_conditions.py"),
    *("unit/stress/parent/test_worker_process.py", "unit/stress/worker/test_host_contents.py"),
    *("unit/stress/worker/test_host_counters.py", "unit/stress/test_journal.py"),
    "unit/stress/worker/test_session.py",
    *("unit/test_json_documents.py", "unit/test_errors.py", "unit/test_no_memory.py"),
    *("cli/test_codepage.py", "cli/test_doctor.py", "cli/test_granularity.py", "cli/test_grow.py"),
    "cli/test_interrupt.py",
    *("cli/test_reserve.py", "cli/test_stderr.py"),
)

pytestmark = [
    pytest.mark.wine,
    pytest.mark.timeout(3000),  # the first run builds the rig
    pytest.mark.skipif(os.environ.get("VMTOOL_WINE") != "1", reason="set VMTOOL_WINE=1 to run"),
]


RUN = (sys.executable, str(ROOT / "tests" / "windows" / "rig" / "rig.py"), "run")


def winpy(*arguments):
    """Run the rig's Python; return its exit code and what it printed on stdout."""
    result = subprocess.run(
        [*RUN, *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, "VMTOOL_RIG_TIMEOUT": "2700"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",  # its console writes in a Windows code page
        timeout=2900,
    )
    return result.returncode, result.stdout


@pytest.fixture(scope="module")
def wine():
    """The name and version of what the tests run on, from its own mouth."""
    program = """if True:
        import ctypes, sys
        version = ctypes.WinDLL("ntdll").wine_get_version
        version.restype = ctypes.c_char_p
        print("Wine %s," % version().decode(), sys.platform, "%d.%d" % sys.version_info[:2])
        sys.exit(7)"""
    code, output = winpy("-c", program)
    assert code == 7
    return output.strip()


def test_the_rig_is_a_windows_python_under_wine(wine):
    name, _, python = wine.partition(", ")
    assert name.startswith("Wine ")
    assert python == "win32 {}.{}".format(*sys.version_info)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_wine_and_all_its_services(name):
    number = getattr(signal, name)  # Windows, where this is skipped, has no SIGHUP
    program = "import os, time; print(os.environ['WINEPREFIX'], flush=True); time.sleep(600)"
    with subprocess.Popen(
        [*RUN, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as rig:
        try:
            prefix = rig.stdout.readline().strip()
            rig.send_signal(number)
            code = rig.wait(timeout=60)
        finally:
            rig.kill()
    assert prefix
    assert code == 128 + number
    left = [process for process in psutil.process_iter() if prefix_of(process) == prefix]
    assert left == []


def prefix_of(process):
    """The directory that *process* has its Windows from, if it is one of Wine."""
    try:
        return process.environ().get("WINEPREFIX")
    except psutil.Error:
        return None


def test_the_tests_pass_on_wine(wine, record_property):
    # Unbuffered: what was printed survives if the process is killed.
    paths = [f"tests/{path}" for path in PATHS]
    options = ("-q", "-p", "no:cacheprovider", "--timeout=300")  # starting processes is slow there
    code, output = winpy("-u", "-m", "pytest", *options, *paths)
    verdict = output.splitlines()[-1] if output else "no output"
    record_property("summary", f"on {wine} (not Windows): {verdict}")
    assert code == 0, output
