"""No limit or filter causes a traceback: one line names the call or the limit, and a way out."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
from seccomp import refusing

from vmtool.memory.rlimits_and_privileges import has_capability

CAP_SYS_RESOURCE = 24
linux = pytest.mark.skipif(sys.platform != "linux", reason="these limits are Linux's")
COMMANDS = (
    ["doctor"],
    ["granularity"],
    ["stress", "--cycles", "20"],
    ["kv-estimate", "gemma-3-1b"],
)


def under(limit, *arguments):
    """Run vmtool in a shell that has set *limit*."""
    return subprocess.run(
        [
            "bash",
            "-c",
            f'ulimit {limit}; exec "$@"',
            "-",
            sys.executable,
            "-m",
            "vmtool",
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@linux
@pytest.mark.parametrize(
    "limit", ["-v 16000", "-v 20000", "-v 34000", "-v 40000", "-d 8000", "-d 19000"]
)
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_too_little_memory_to_load_is_one_error(limit, arguments):
    ran = under(limit, *arguments)
    if "Traceback" in ran.stderr and "vmtool/cli" not in ran.stderr:
        pytest.skip("Python itself does not start under this limit")
    assert "Traceback" not in ran.stderr
    if ran.returncode:
        assert "vmtool: error: " in ran.stderr
        # The one that is set, and no other: where it is hard, ulimit cannot raise it.
        set_here, other = ("RLIMIT_AS", "RLIMIT_DATA")[:: 1 if limit.startswith("-v") else -1]
        assert f"{set_here} is " in ran.stderr
        assert "cause: " in ran.stderr or ran.returncode == 5
        here = "ulimit -" if has_capability(CAP_SYS_RESOURCE) else "raise its hard limit"
        assert here in ran.stderr or "in /etc/security/limits.conf" in ran.stderr
        assert other not in ran.stderr


@linux
@pytest.mark.parametrize(
    ("calls", "code"),
    [(["prlimit64", "getrlimit"], 1), (["sched_getaffinity"], 1), (["prlimit64"], 38)],
)
@pytest.mark.parametrize("command", ["doctor", "granularity"])
def test_a_filter_that_hides_a_limit_leaves_it_unknown(vmtool_child, calls, code, command):
    ran = vmtool_child(command, "--json", before=refusing(*calls, code=code))
    assert ran.code == 0, ran.stderr
    machine = ran.document["machine"]
    if "prlimit64" in calls:
        assert machine["limits"]["address_space"] is None
    else:
        assert machine["system"]["cpus_usable"] is None


@linux
def test_a_filter_on_limits_does_not_make_a_guard_fail(vmtool_child):
    """The child that traps wants no core dump, which is a limit as well."""
    ran = vmtool_child("guards", "--json", before=refusing("prlimit64"))
    assert ran.code == 0, ran.stderr


@linux
def test_a_filter_that_refuses_what_loading_calls_is_one_error():
    """Click's import calls uname; entry() is what reports it, so it is the program that is run."""
    program = "import sys; sys.argv[1:] = ['doctor']; from vmtool.__main__ import entry; entry()"
    ran = subprocess.run(
        [sys.executable, "-c", refusing("uname") + program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "vmtool cannot be loaded: a system call failed in " in ran.stderr
    assert "cause: a security policy" in ran.stderr


@linux
def test_a_filter_that_refuses_threads_is_a_problem(vmtool_child):
    before = refusing("clone", "clone3")
    ran = vmtool_child("doctor", "--strict", "--json", "--backing", "host", before=before)
    assert ran.code == 3, ran.stderr
    (found,) = [each for each in ran.document["machine_findings"] if each["kind"] == "task-limit"]
    assert "refuses clone3 or clone" in found["message"]


@linux
@pytest.mark.parametrize(
    "arguments",
    [
        ["stress", "--cycles", "20"],
        ["kv-replay", "synthetic:requests=3", "--model", "qwen3-0.6b", "--backing", "host"],
        ["inspect", "--", "true"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_filter_that_refuses_an_unforeseen_call_is_named_with_the_function(
    vmtool_child, arguments
):
    ran = vmtool_child(*arguments, before=refusing("wait4"))
    assert ran.code == 1
    assert "Traceback" not in ran.stderr
    assert "EPERM (1)" in ran.stderr
    assert "a security policy does not allow it (seccomp, SELinux or a sandbox)" in ran.stderr


@linux
@pytest.mark.parametrize(("code", "symbol"), [(1, "not permitted"), (38, "not implemented")])
def test_a_filter_that_refuses_pipes_is_no_limit_of_tasks(vmtool_child, code, symbol):
    ran = vmtool_child("stress", "--runs", "1", before=refusing("pipe2", code=code))
    assert ran.code == 1
    assert "a worker process cannot be started: pipe2 failed: " in ran.stderr
    assert symbol in ran.stderr
    assert "cause: a security policy does not allow it (seccomp" in ran.stderr
    assert "pids.max" not in ran.stderr


@linux
@pytest.mark.parametrize("command", [("limits", "mappings"), ("guards",)])
def test_attempts_are_refused_where_no_files_are_left_for_their_processes(vmtool_child, command):
    before = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))"
    command = (*command, "--method", "fixed")
    ran = vmtool_child(*command, before=before)
    assert ran.code == 5
    assert "each attempt needs a process of its own, and none can be started" in ran.stderr
    assert "cause: RLIMIT_NOFILE is 9, " in ran.stderr
    assert vmtool_child(*command, before=before.replace("9", "20")).code == 0


@linux
def test_heaps_of_threads_leave_room_for_the_stacks_of_others(vmtool_child):
    """The C library would take 64 MiB of addresses for each thread, which no plan counts."""
    limits = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (300_000 << 10,) * 2)\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (8 << 20,) * 2)"
    )
    arguments = ("--runs", "1", "--cycles", "20", "--workers", "8", "--granule", "64KiB")
    ran = vmtool_child("stress", *arguments, "--capacity", "64KiB", before=limits)
    assert ran.code == 0, ran.stderr


@linux
def test_a_sandbox_that_refuses_reservations_is_not_a_lack_of_addresses(vmtool_child):
    no_reservations = refusing(code=12, arguments=[("mmap", 2, 0)])  # prot is PROT_NONE
    ran = vmtool_child("reserve", "1GiB", before=no_reservations)
    assert ran.code == 1
    assert "not even one page can be reserved, and no limit is reached" in ran.stderr
    assert "the seccomp filter of this process refuses it" in ran.stderr
    assert "no free range" not in ran.stderr


@linux
def test_where_no_thread_can_be_started_the_limits_are_named(vmtool_child):
    """An old container runtime answers EPERM to the clone3 of a new C library."""
    no_threads = refusing("clone3") + refusing(arguments=[("clone", 0, 0x3D0F00)])
    before = "import vmtool.memory.threads as p; start = p.start_thread\n"
    ran = vmtool_child("stress", "--cycles", "30", before=before + no_threads)
    assert ran.code == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "cannot be started" in ran.stderr
    assert "a seccomp filter refuses clone3" in ran.stderr


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_at_once_are_one(number):
    """timeout(1) signals the process and then its group."""
    arguments = ("stress", "--duration", "60s", "--runs", "1", "--capacity", "4MiB", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "vmtool", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        while not psutil.Process(child.pid).children():
            time.sleep(0.05)
        time.sleep(1)
        child.send_signal(number)
        time.sleep(0.02)
        child.send_signal(number)
        stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["outcome"] == "interrupted"
    assert document["accidents"] == []


def test_bindings_that_need_a_missing_library_are_not_available(vmtool_child):
    """cuda-bindings raises RuntimeError while it is imported where libdl.so.2 is missing."""
    no_library = """
import ctypes, sys
load = ctypes.CDLL
ctypes.CDLL = lambda name, *rest: None if name == "libcuda.so.1" else load(name, *rest)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cuda":
            raise RuntimeError("Failed to dlopen libdl.so.2")
sys.meta_path.insert(0, Finder())
"""
    ran = vmtool_child("doctor", "--json", before=no_library)
    assert ran.code == 0, ran.stderr
    (found,) = ran.document["device_findings"]
    assert found["kind"] == "no-cuda"
    assert "a system library that they need is missing" in found["message"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_command_does_not_start_where_nothing_of_its_report_can_be_written(
    vmtool_child, tmp_path, option
):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    report, ran_file = tmp_path / "report", tmp_path / "ran"
    command = ("--", "touch", str(ran_file))
    ran = vmtool_child("inspect", option, str(report), *command, before=limit)
    assert ran.code == 1
    assert f"cannot write '{report}': File too large" in ran.stderr
    assert "cause: RLIMIT_FSIZE is 0 B" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows gives a child all three streams")
def test_a_command_does_not_start_where_stderr_would_get_its_report_and_is_closed(
    vmtool_child, tmp_path
):
    closed = "import sys; sys.stderr = None"
    command = ("--", "touch", str(tmp_path / "ran"))
    assert vmtool_child("inspect", *command, before=closed).code == 2
    assert list(tmp_path.iterdir()) == []
    ran = vmtool_child("inspect", "-o", str(tmp_path / "report"), *command, before=closed)
    assert ran.code == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_file_that_may_not_be_so_long_names_the_limit(vmtool, tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        ran = vmtool("reserve", "1MiB", "--json", "-o", str(tmp_path / "result.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ran.code == 1
    assert "result.json: File too large" in ran.stderr
    assert "cause: RLIMIT_FSIZE is 1 KiB" in ran.stderr
    assert "hint: ulimit -f unlimited" in ran.stderr or "ulimit -Sf" in ran.stderr
