"""Findings in real processes, which the tests start, and what processes hold on devices."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import MANY_AREAS

from vmtool.errors import CallError
from vmtool.inspect.areas_and_reservations import ProcessGoneError
from vmtool.inspect.processes import open_process, read_devices
from vmtool.inspect.watch import MOST_WITH_RESIDENCY, InspectOptions, look, watch
from vmtool.machine import read_facts
from vmtool.machine.nvml import DeviceProcess, ManagedDevice, NvmlReading
from vmtool.memory.rlimits_and_privileges import has_capability
from vmtool.report.inspect_sentences import describe_unavailable
from vmtool.results.inspect import ProcessDevice, WatchEnding
from vmtool.units import GIB, KIB, MIB

_BUFFER = """
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
granule = int(sys.argv[2]) if len(sys.argv) > 2 else 64 << 10
above = wall()
buffer = VirtualBuffer(open_backing("host", method={method!r}), 1 << 30)
below = wall()
for i in range(0, 40):
    buffer.commit(i * granule * 2, granule)
ready(base=buffer.base, committed=buffer.committed)
sys.stdin.readline()
for i in range(40, 46):
    buffer.commit(i * granule * 2, granule)
    ready(committed=buffer.committed)
    sys.stdin.readline()
"""


def _reservation_at(result, base):
    return next(item for item in result.reservations if item.base == base)


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_a_buffer_comes_out_with_its_capacity_committed_bytes_and_granule(child, looked, method):
    made = child(_BUFFER.format(method=method))

    found = _reservation_at(looked(made.pid), made.facts["base"])

    assert found.capacity_bytes == 1 << 30
    assert found.committed_bytes == made.facts["committed"] == 40 * 64 * KIB
    assert found.granule_bytes == 64 * KIB
    assert found.resident_bytes == 0


def test_with_advise_what_is_committed_is_what_is_resident(child, looked):
    # A huge page, if the kernel gave one, would hold more than a commit.
    touch = (
        "import ctypes\nctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE\n"
        "for i in range(40): ctypes.memset(buffer.base + i * granule * 2, 1, granule)\n"
    )
    made = child(_BUFFER.format(method="advise").replace("ready(base", f"{touch}ready(base", 1))

    found = _reservation_at(looked(made.pid), made.facts["base"])

    assert found.capacity_bytes == 1 << 30
    assert found.resident_bytes == made.facts["committed"] == 40 * 64 * KIB


def test_watched_commits_make_the_granule_exact(child, stepped):
    made = child(_BUFFER.format(method="fixed"))

    result = stepped(made.pid, 6, made.go_on)

    found = _reservation_at(result, made.facts["base"])
    assert (found.granule_bytes, found.granule_exact) == (64 * KIB, True)


def test_counters_are_the_processs_own(child, looked):
    made = child("data = bytearray(64 << 20)\ndata[::4096] = b'x' * 16384\nready()\ninput()")

    last = looked(made.pid).last

    assert last.anonymous_bytes > 64 * MIB
    assert last.resident_bytes >= last.anonymous_bytes
    assert last.address_space_bytes > last.resident_bytes
    assert last.charge_bytes > 64 * MIB
    assert last.threads == 1
    assert last.descriptors >= 3
    assert last.minor_faults > 16384


def test_a_limit_that_does_not_hold_is_left_out(child, looked):
    if os.geteuid() or not has_capability(14):
        pytest.skip("needs root with CAP_IPC_LOCK")

    free = looked(child("ready()\ninput()").pid)
    bound = looked(child("os.setuid(65534)\nready()\ninput()").pid)

    assert "RLIMIT_MEMLOCK" not in {limit.name for limit in free.limits}
    assert "RLIMIT_MEMLOCK" in {limit.name for limit in bound.limits}


def test_the_data_limit_is_about_the_charge_without_the_stack(child, looked):
    import resource

    made = child("hold()", before=lambda: resource.setrlimit(resource.RLIMIT_DATA, (GIB, GIB)))

    (limit,) = [each for each in looked(made.pid).limits if each.name == "RLIMIT_DATA"]

    status = Path(f"/proc/{made.pid}/status").read_text()
    assert f"\nVmData:\t{limit.used // KIB:8} kB\n" in status


def test_sixty_thousand_areas_are_near_the_limit(child, looked):
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 200_000:
        pytest.skip(f"vm.max_map_count is {limit}: a process that fills it takes too long here")
    made = child(MANY_AREAS.replace("COUNT", str(limit * 94 // 100)))

    result = looked(made.pid)

    assert result.last.areas > limit * 0.94
    assert result.last.areas > MOST_WITH_RESIDENCY
    assert "area-limit" in {finding.name for finding in result.findings}
    assert result.reservations[0].resident_bytes is None  # reading it would hold the process up


@pytest.mark.parametrize(("kept", "grows"), [("kept.append(some)", True), ("del some", False)])
def test_a_leak_is_found_and_steady_use_is_not_one(child, stepped, kept, grows):
    made = child(
        "kept = []\nready()\nwhile True:\n    input()\n    some = bytearray(b'x' * (1 << 20))\n"
        f"    {kept}\n    ready()"
    )

    result = stepped(made.pid, 30, made.go_on)

    found = {trend.counter for trend in result.trends if trend.grows}
    memory = {"resident_bytes", "anonymous_bytes", "charge_bytes"}
    assert found & memory == (memory if grows else set())
    assert [each.name for each in result.findings if each.name == "growth"] == ["growth"] * grows


def test_a_process_that_ends_leaves_what_was_had(child, target):
    made = child("ready()\ntime.sleep(0.6)")

    options = InspectOptions(watch=True, interval_ns=100_000_000, duration_ns=30 * 10**9)
    result = watch(target(made.pid), options, read_facts(), stopping=lambda: False)

    assert result.ending is WatchEnding.PROCESS_ENDED
    assert result.samples_taken >= 1
    assert result.last.resident_bytes > 0


def test_a_process_that_is_killed_while_it_is_watched(child, target):
    made = child("ready()\ninput()")
    seen = []

    def kill_it(sample):
        seen.append(sample)
        if len(seen) == 2:
            os.kill(made.pid, signal.SIGKILL)

    result = watch(
        target(made.pid),
        InspectOptions(watch=True, interval_ns=50_000_000),
        read_facts(),
        stopping=lambda: False,
        progress=kill_it,
    )

    assert result.ending is WatchEnding.PROCESS_ENDED


@pytest.mark.parametrize(
    "command", [["/bin/sleep", "60"], [sys.executable, "-c", "import time; time.sleep(60)"]]
)
def test_an_exec_is_seen_also_of_the_same_file(child, target, command):
    made = child(f"ready()\ninput()\nos.execv({command[0]!r}, {command!r})")
    opened = target(made.pid)
    before = opened.program()
    again = opened.program()

    made.process.stdin.write("\n")
    made.process.stdin.flush()
    words = Path(f"/proc/{made.pid}/cmdline")
    while words.read_bytes().decode().split("\0")[:-1] != command:
        time.sleep(0.01)

    assert before == again
    assert opened.program() != before
    assert opened.identity().command == tuple(command)


def test_a_program_that_an_upgrade_replaced_is_no_exec(program, target, tmp_path):
    file = tmp_path / "engine"
    shutil.copy("/bin/sh", file)
    made = program(str(file), "-c", "echo ready; read line")
    opened = target(made.pid)
    before = opened.program()

    file.unlink()

    assert opened.program() == before


def test_a_command_that_starts_another_is_followed(child, target):
    made = child("ready()\ninput()\nos.execv('/bin/sleep', ['sleep', '60'])")

    def go_on(watched):
        if watched.taken == 1:
            made.process.stdin.write("\n")
            made.process.stdin.flush()
        seen.append(watched)

    seen = []
    result = watch(
        target(made.pid),
        InspectOptions(watch=True, interval_ns=20_000_000, duration_ns=30 * 10**9),
        read_facts(),
        stopping=lambda: bool(seen) and len(seen[-1].programs) > 1,
        progress=go_on,
    )

    assert [program.command[-1] for program in result.programs][1:] == ["60"]
    assert result.programs[0].name.startswith("python")
    assert result.process.command == ("sleep", "60")
    assert result.ending is WatchEnding.INTERRUPTED
    assert any(item.name.endswith("/sleep") for item in result.reservations)


def test_what_all_processes_of_a_group_use_is_read_again(child, target):
    group = Path("/sys/fs/cgroup/pids", f"vmtool-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        (group / "pids.max").write_text("8")
        made = child(f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\nready()\ninput()")
        opened = target(made.pid)
        first = opened.group()
        (group / "pids.max").write_text("9")
        again = opened.refreshed(first)
        (limit,) = [
            limit for limit in opened.limits(opened.counters(0), again) if limit.name == "pids.max"
        ]
        made.end()
    finally:
        while (group / "cgroup.procs").read_text():
            time.sleep(0.01)
        group.rmdir()

    assert (first.pids, first.pids_max) == (1, 8)
    assert (limit.used, limit.soft) == (1, 9)


def test_a_zombie_is_named_with_its_parent(child):
    made = child("pid = os.fork() or os._exit(7)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
                 "ready(pid=pid)\ninput()")  # fmt: skip

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CallError) as caught:
        open_process(made.facts["pid"])

    assert (
        len(list(Path("/proc/self/fd").iterdir())) == before
    )  # a watch meets each again and again
    name = Path(f"/proc/{made.pid}/comm").read_text().strip()
    assert (
        f"it has ended (a zombie), and {name} ({made.pid}) has not read its exit code yet"
        in str(caught.value)
    )


def test_a_process_without_its_main_thread_differs_from_an_ended_one(child, target):
    made = child(
        "import ctypes, threading\ndef tell():\n"
        "    while open(f'/proc/{os.getpid()}/stat').read().split()[2] != 'Z': time.sleep(0.01)\n"
        "    ready(tid=threading.get_native_id())\n    sys.stdin.read()\n"
        "threading.Thread(target=tell).start()\nctypes.CDLL(None).syscall(60, 0)"
    )

    with pytest.raises(CallError, match="its main thread has ended but others still run"):
        open_process(made.pid)
    assert target(made.facts["tid"]).counters(0).resident_bytes


def test_a_number_without_a_process_is_one_error(target):
    pid = int(Path("/proc/sys/kernel/pid_max").read_text()) - 1

    with pytest.raises(CallError, match="no such process"):
        target(pid)


def test_a_thread_of_the_kernel_is_one_error(target):
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text() != "kthreadd\n":
        pytest.skip("no kernel thread is visible here")

    with pytest.raises(CallError, match="it is a kernel thread"):
        target(2)


def test_a_process_that_ended_is_not_mistaken_for_its_successor(child, target):
    made = child("ready()\ninput()")
    opened = target(made.pid)
    opened.counters(0)
    made.process.kill()
    made.process.wait()

    with pytest.raises(ProcessGoneError):
        opened.counters(0)


def test_the_process_of_another_user_gives_what_may_be_read(child, target):
    if os.geteuid() != 0:
        pytest.skip("another user's process can be made by root only")
    made = child("ready()\ninput()")
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = b"failed"
        try:
            os.setgid(65534)
            os.setuid(65534)
            result = look(open_process(made.pid), InspectOptions(), read_facts())
            names = sorted(item.what for item in result.unavailable if item.reason == "permission")
            status = ",".join(names).encode() if result.last.resident_bytes else b"nothing"
        finally:
            os.write(writer, status)
            os._exit(0)
    os.close(writer)
    words = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(pid, 0)

    assert "reservations" in words


@pytest.mark.parametrize("value", [1, 2])
def test_a_process_hidden_by_proc_differs_from_a_missing_one(child, value):
    if os.geteuid() != 0 or not has_capability(21):
        pytest.skip("needs root with CAP_SYS_ADMIN to mount /proc")
    made = child("ready()\ninput()")
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = "opened"
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            options = ctypes.c_char_p(f"hidepid={value}".encode())
            if (
                libc.unshare(0x20000)  # CLONE_NEWNS
                or libc.mount(
                    b"none", b"/", None, ctypes.c_ulong(0x44000), None
                )  # MS_REC|MS_PRIVATE
                or libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), options)
            ):
                status = f"skip: {os.strerror(ctypes.get_errno())}"
            else:
                os.setgid(65534)
                os.setuid(65534)
                open_process(made.pid)
        except CallError as error:
            status = f"{error}\n{error.hint}"
        finally:
            os.write(writer, status.encode())
            os._exit(0)
    os.close(writer)
    words = os.read(reader, 2000).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    if words.startswith("skip"):
        pytest.skip(words)

    assert {1: "EPERM", 2: "no such process"}[value] in words
    assert "/proc is mounted with hidepid=" in words


def test_a_process_in_another_pid_namespace_is_read_by_its_outer_number(target):
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare(1) is not installed")
    made = subprocess.Popen(
        [unshare, "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        if made.stdout.readline() != b"ready\n":
            pytest.skip("this kernel or container forbids a new PID namespace")
        (inner,) = target(made.pid).children()
        identity = target(inner).identity()
    finally:
        made.kill()
        made.wait()
        made.stdout.close()

    assert identity.pid == inner
    assert identity.own_pid_namespace is True
    assert abs(identity.started_ns / 1e9 - time.time()) < 600


def test_children_are_listed(child, looked):
    made = child(
        "import subprocess\nc = subprocess.Popen(['sleep', '60'])\nready(pid=c.pid)\n"
        "try:\n    input()\nfinally:\n    c.kill()"
    )
    try:
        result = looked(made.pid, children=True)
    finally:
        os.kill(made.facts["pid"], signal.SIGKILL)

    assert [each.pid for each in result.children] == [made.facts["pid"]]


_OURS = (10, 11)  # a process and its child
_OTHER = DeviceProcess(20, "/opt/other/engine", 5 * GIB)


def _device(index, *processes, listed=True):
    return ManagedDevice(
        index=index,
        uuid=f"0{index}",
        name="H200",
        pci=None,
        total_bytes=140 * GIB,
        used_bytes=60 * GIB,
        free_bytes=80 * GIB,
        processes=processes if listed else None,
        ecc=None,
        mig=None,
        persistence=None,
        compute_mode=None,
    )


def _holds(index, own, *others):
    return ProcessDevice(index, "H200", 140 * GIB, 80 * GIB, own, others)


def _used(pid, used):
    return DeviceProcess(pid, "engine", used)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(
            [_device(0, _OTHER, _used(10, GIB), _used(11, MIB))],
            [_holds(0, GIB + MIB, _OTHER)],
            id="own and child",
        ),
        pytest.param(
            [_device(0, _OTHER), _device(1, _used(11, MIB))], [_holds(1, MIB)], id="child alone"
        ),
        pytest.param(
            [_device(0, _used(10, GIB)), _device(1)], [_holds(0, GIB)], id="one of two devices"
        ),
        pytest.param([_device(0, listed=False)], [_holds(0, None)], id="no list"),
        pytest.param(
            [_device(0, _used(10, None), _OTHER)], [_holds(0, None, _OTHER)], id="not counted"
        ),
        pytest.param(
            [_device(0, _used(10, GIB), _used(11, None))], [_holds(0, None)], id="child not counted"
        ),
        pytest.param(
            [_device(0, _used(11, None))], [_holds(0, None)], id="only child, not counted"
        ),
        pytest.param([], [], id="no device"),
    ],
)
def test_what_the_process_and_its_children_hold(devices, expected):
    found, absent = read_devices(_OURS, NvmlReading(devices=tuple(devices)))

    assert list(found) == expected
    assert absent is None


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([_device(0)], [], id="nobody, as in a container"),
        pytest.param([_device(0, _OTHER)], [], id="others only"),
        pytest.param(
            [_device(0), _device(1, listed=False)], [_holds(1, None)], id="no list of one"
        ),
    ],
)
def test_a_process_that_is_not_listed_may_still_use_memory(devices, expected):
    found, absent = read_devices(_OURS, NvmlReading(devices=tuple(devices)))

    assert list(found) == expected
    assert (absent.what, absent.reason) == ("devices", "not listed")
    (line,) = describe_unavailable([absent])
    assert line.startswith("devices: NVML does not list this process. In a container")


def test_without_nvml_the_reason_is_given():
    found, absent = read_devices(_OURS, NvmlReading(absent="NVML is not available: no driver"))

    assert found == ()
    assert (absent.reason, absent.detail) == ("platform", "NVML is not available: no driver")
