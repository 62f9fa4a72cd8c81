"""Ctrl-C, Ctrl-Break and dying workers on Windows."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import psutil
import pytest
from stored_runs import described

if sys.platform != "win32":
    pytest.skip("consoles and exit codes are those of Windows, or Wine", allow_module_level=True)

import signal

from vmtool.cli.interrupt import watch_signals
from vmtool.memory.windows.wine import wine_version

# Waits for a worker of the process *pid*, or until *told* holds anything.
WAIT = """
import signal, subprocess, sys, threading, time
import psutil
def wait(pid, told):
    deadline = time.monotonic() + 60
    while not told and time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            try:
                if "vmtool.stress.worker" in child.cmdline():
                    return
            except (psutil.Error, OSError):
                pass  # it has ended, or has no command line to read yet
        time.sleep(0.05)
"""

# A console of its own, so that the event reaches no other process; only a process that is
# attached to a console gets one. The event is sent once vmtool says something or has a worker.
CONSOLE = (
    WAIT
    + """
import ctypes
kernel32 = ctypes.WinDLL("kernel32")
kernel32.FreeConsole()
if not kernel32.AllocConsole():
    sys.exit(99)
kernel32.SetConsoleCtrlHandler(None, False)  # whoever runs the tests may have switched Ctrl-C off
for number in (signal.SIGINT, signal.SIGBREAK):
    signal.signal(number, lambda *_: None)
child = subprocess.Popen(
    [sys.executable, "-m", "vmtool", *sys.argv[2:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
)
told = []
reader = threading.Thread(target=lambda: told.extend(iter(child.stderr.readline, b"")))
reader.start()
wait(child.pid, told)
kernel32.GenerateConsoleCtrlEvent(getattr(signal, sys.argv[1]), 0)
sys.stdout.buffer.write(child.stdout.read())
reader.join()
sys.stderr.buffer.writelines(told)
sys.exit(child.wait())
"""
)

# The C library of Windows raises SIGBREAK in a thread of its own when the event comes.
BREAK = (
    WAIT
    + """
import os
from vmtool.cli.app import run
def press():
    wait(os.getpid(), [])
    signal.raise_signal(signal.SIGBREAK)
threading.Thread(target=press).start()
sys.exit(run(sys.argv[1:]))
"""
)

# One run: a worker takes a second to start under Wine.
SMALL = ("--capacity", "1MiB", "--granule", "64KiB", "--runs", "1", "--json")
LONG_RUN = ("stress", "--capacity", "1MiB", "--granule", "64KiB", "--duration", "1m", "--json")


@pytest.fixture
def on_windows():
    if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        pytest.skip("Wine ends every process of a console at Ctrl-Break, whatever its handlers")


def run(*arguments, program=("-m", "vmtool")):
    child = subprocess.run(
        [sys.executable, *program, *arguments],
        check=False,
        capture_output=True,
        stdin=subprocess.PIPE if "--hold" in arguments else subprocess.DEVNULL,
        timeout=100,
    )
    return child.returncode, child.stdout, child.stderr


def check_partial(code, out, err):
    assert code == 130, err
    document = json.loads(out)
    described(document)
    assert document["outcome"] == "interrupted"
    assert document["accidents"] == []
    assert all(check["outcome"] != "failed" for check in document["checks"])
    assert b"interrupted; everything is released" in err


def run_in_console(event, *arguments):
    code, out, err = run(event, *arguments, program=("-c", CONSOLE))
    if code == 99:
        pytest.skip("no console can be had here")
    return code, out, err


def test_ctrl_c_ends_a_run_that_holds_and_gives_back_the_reservation():
    code, out, err = run_in_console("CTRL_C_EVENT", "reserve", "64MiB", "--hold", "--json")
    assert code == 130
    assert json.loads(out)["capacity_bytes"] == 64 << 20
    assert b"interrupted" in err


def test_ctrl_c_ends_a_stress_run_and_no_worker():
    check_partial(*run_in_console("CTRL_C_EVENT", *LONG_RUN))


@pytest.mark.usefixtures("on_windows")
def test_ctrl_break_ends_a_stress_run_and_no_worker():
    check_partial(*run_in_console("CTRL_BREAK_EVENT", *LONG_RUN))


def test_sigbreak_ends_a_stress_run():
    check_partial(*run(*LONG_RUN, program=("-c", BREAK)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGBREAK])
def test_the_first_signal_is_noted_and_the_second_interrupts(number):
    with watch_signals(iter([0.0, 2.0]).__next__) as interruption:
        signal.raise_signal(number)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGBREAK) == signal.SIG_DFL


def test_a_worker_that_uses_memory_which_is_not_there_is_named_by_its_exception():
    """A commit that is reported and did not happen is the fault that only a crash shows."""
    code, out, err = run(
        *("stress", *SMALL, "--cycles", "4"),
        *("--method", "private", "--inject", "VirtualAlloc2:3=SKIP"),
    )
    assert code == 1, err
    (accident,) = json.loads(out)["accidents"]
    assert accident["signal"] == "STATUS_ACCESS_VIOLATION"
    assert accident["operation"] in {"touch", "commit", "verify"}
    assert accident["exit_code"] in {0xC0000005, 1}  # 1 where ctypes made an error of it
    assert "not committed" in accident["cause"]


def test_an_injected_signal_is_reported_as_injected():
    code, out, err = run(
        *("stress", *SMALL, "--cycles", "4"),
        *("--method", "private", "--inject", "VirtualFree:9=SIGSEGV"),
    )
    assert code == 1, err
    (accident,) = json.loads(out)["accidents"]
    assert accident["cause"] == "--inject VirtualFree:9=SIGSEGV ended it"


@pytest.mark.parametrize("method", ["private", "decommit"])
def test_the_limit_of_areas_is_no_number_that_was_not_reached(method):
    code, out, err = run("limits", "mappings", "--method", method, "--json")
    document = json.loads(out)
    (first,) = document["kinds"][0]["methods"]
    assert code == (1 if first["outcome"] == "not found" else 0), err
    if wine_version() is not None:
        assert document["machine"]["system"]["os"] == "Wine"
    (found,) = document["kinds"][0]["methods"]
    assert found["reached"] is None or found["reached"] > 0
    if method == "decommit":  # its commits stay in one area
        assert found["cause"] == "its commits add no memory areas"


def test_a_worker_that_hangs_does_not_outlive_a_killed_parent():
    """It never looks at stdin, as one whose first call hangs."""
    program = (
        "import time\n"
        "from vmtool.memory.children import start_child\n"
        "child = start_child('timeit', '-n1', '-r1', '__import__(\"time\").sleep(600)')\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        try:
            worker = psutil.Process(int(parent.stdout.readline()))
            assert worker.is_running()
        finally:
            parent.kill()
    worker.wait(60)


def test_writing_to_what_is_not_committed_is_an_access_violation():
    code, out, err = run("guards", "--json")
    assert code == 0, err
    values = [check["values"] for check in json.loads(out)["checks"]]
    found = {(v["method"], v["case"]): v["signal"] or v["written"] for v in values}
    for method in ("view", "private", "decommit"):
        assert found[method, "committed"] is True
        assert found[method, "never"] == found[method, "released"] == "access violation"


def test_a_child_that_may_die_shows_no_error_box():
    program = (
        "from vmtool.memory.children import prepare_child; prepare_child()\n"
        "import ctypes; print(ctypes.WinDLL('kernel32').GetErrorMode())"
    )
    code, out, err = run(program=("-c", program))
    assert (code, err) == (0, b"")
    assert int(out) & 0b11 == 0b11  # SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX


def test_a_refused_commit_in_a_worker_is_a_result():
    code, out, err = run(
        *("stress", *SMALL, "--cycles", "4"),
        *("--method", "view", "--inject", "CreateFileMappingW:5"),
    )
    assert code == 1
    (failure,) = json.loads(out)["failures"]
    assert "ERROR_COMMITMENT_LIMIT (1455)" in failure["message"]
    assert failure["injected"]
    assert b"1455" in err


@pytest.mark.parametrize("method", ["view", "private", "decommit"])
@pytest.mark.parametrize("pattern", ["tail", "random"])
def test_every_counter_agrees_for_every_method(method, pattern):
    code, out, err = run(
        *("stress", *SMALL, "--capacity", "2MiB", "--cycles", "40"),
        *("--method", method, "--pattern", pattern, "--verify", "full", "--seed", "7"),
    )
    assert code == 0, err
    checks = {each["name"]: each["outcome"] for each in json.loads(out)["checks"]}
    assert checks["contents"] == "passed"
    for counter in ("address_space", "charge", "resident", "mappings"):
        assert checks[f"counters.{counter}"] == "passed"


def test_workers_and_threads_run_beside_each_other():
    code, out, err = run(
        *("stress", *SMALL, "--cycles", "10"),
        *("--method", "private", "--workers", "2", "--threads", "2"),
    )
    assert code == 0, err
    assert len(json.loads(out)["base_addresses"]) == 4


def test_paths_with_other_letters_are_written(tmp_path):
    target = tmp_path / "Überläufe, 火.json"
    code, out, err = run("granularity", "--backing", "host", "--json", "-o", os.fspath(target))
    assert (code, out) == (0, b""), err
    assert json.loads(target.read_text(encoding="utf-8"))["schema"] == "vmtool.granularity"
