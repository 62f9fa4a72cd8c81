"""Real control groups with limits of memory and of tasks, made by the test where the kernel lets it."""

import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from seccomp import refusing

from vmtool.machine.cgroups import CgroupFacts, CgroupLevel, GroupLimit
from vmtool.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


#: Another user, who may read all files, as this Python may be where only its owner can run it: its
#: children keep CAP_DAC_READ_SEARCH and nothing else (capset(2), PR_CAP_AMBIENT).
OTHER_USER = """
import ctypes, os, struct, sys
prctl = ctypes.CDLL(None).prctl
assert prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS
os.setgroups([]); os.setgid(65534); os.setuid(65534)
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
sets = ctypes.create_string_buffer(struct.pack("6I", 4, 4, 4, 0, 0, 0))
if ctypes.CDLL(None).capset(header, sets) or prctl(47, 2, 2, 0, 0):  # PR_CAP_AMBIENT_RAISE
    sys.exit(77)  # root lacks it here, as in most containers
"""


@pytest.fixture
def make_group():
    """Return a function that makes a group with limits set, and gives what enters it.

    Version 1 has a hierarchy for each controller, and version 2 one group for all of them.
    """
    made = []
    hierarchy = Path("/sys/fs/cgroup")

    def make(**limits):
        own = [(hierarchy / name.split("__")[0], {name: value}) for name, value in limits.items()]
        for groups in (own, [(hierarchy, limits)]):
            try:
                entered = [
                    _make_group(root, values, made)
                    for root, values in groups
                    if (root / "cgroup.procs").exists()
                ]
            except OSError:
                continue
            if len(entered) == len(groups):
                return "".join(f"open({str(file)!r}, 'w').write('0')\n" for file in entered)
        needs = "version 2" if "memory__high" in limits else "root and a writable hierarchy"
        pytest.skip(f"no control group with {', '.join(limits)} can be made here (needs {needs})")

    yield make
    for group in made:
        group.rmdir()


def _make_group(root, limits, made):
    """Make a group in *root*, and return the file that a process enters it by."""
    group = root / f"vmtool-{os.getpid()}"
    group.mkdir()
    made.append(group)
    for key, value in limits.items():
        name = key.replace("__", ".")
        if name == "memory.max" and root.name == "memory":
            name = "memory.limit_in_bytes"
        (group / name).write_text(str(value), encoding="ascii")
    return group / "cgroup.procs"


def finding(document, kind):
    """Return the one finding of a kind about the machine."""
    (found,) = [each for each in document["machine_findings"] if each["kind"] == kind]
    return found


def test_a_file_that_was_read_twice_does_not_make_the_budget_smaller(
    vmtool_child, make_group, tmp_path
):
    join = make_group(memory__max=256 * MIB)
    read = f"""
import os
path = {str(tmp_path / "weights")!r}
with open(path, "wb") as file:
    for _ in range(120):
        file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
for _ in range(3):
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass
"""
    ran = vmtool_child("doctor", "--json", before=join + read)
    assert ran.code == 0, ran.stderr
    level = ran.document["machine"]["cgroup"]["levels"][0]
    if level["cache_bytes"] is None or level["cache_bytes"] < 100 * MIB:
        pytest.skip("the files of this test are not cached in the group (tmpfs?)")
    assert level["reclaimable_bytes"] > 100 * MIB
    assert ran.document["safe_bytes"] > 100 * MIB
    assert "is cache that is dropped first" in finding(ran.document, "cgroup-limit")["message"]
    # And it is true: as much can be committed and touched.
    grown = vmtool_child("grow", "--to", "120MiB", "--against", "nothing", before=join)
    assert grown.code == 0, grown.stderr


def test_a_small_container_can_be_used(vmtool_child, make_group):
    """A group of 250 MiB, in which nothing at all was thought to be safe."""
    join = make_group(memory__max=250 * MIB)
    assert vmtool_child("grow", "--to", str(mmap.PAGESIZE), before=join).code == 0
    assert vmtool_child("doctor", "--strict", "--backing", "host", before=join).code in {0, 3}
    refused = vmtool_child("grow", "--to", "240MiB", before=join)
    assert refused.code == 5
    assert "of 250 MiB" in refused.stderr


def test_a_group_that_has_hardly_anything_is_a_problem_and_refuses(vmtool_child, make_group):
    join = make_group(memory__max=50 * MIB)
    hold = "kept = bytearray(b'x') * (24 << 20)\n"
    ran = vmtool_child("doctor", "--strict", "--json", "--backing", "host", before=join + hold)
    if ran.code in {-9, 137}:
        pytest.skip("Python needs more than this group has")
    assert finding(ran.document, "cgroup-limit")["rating"] == "problem"
    assert ran.code == 3
    refused = vmtool_child("grow", "--to", "16MiB", before=join + hold)
    assert refused.code == 5
    assert "the control group" in refused.stderr


@pytest.mark.parametrize("mib", [48, 52, 54])
def test_a_group_in_which_stress_refuses_is_a_problem(vmtool_child, make_group, mib):
    """From 48 to 60 MiB doctor called enough what stress refused, as that loads more beforehand."""
    join = make_group(memory__max=mib * MIB)
    refused = vmtool_child("stress", "--cycles", "20", "--runs", "1", before=join)
    if refused.code != 5:
        pytest.skip("a plan needs less memory here")
    ran = vmtool_child("doctor", "--strict", "--backing", "host", before=join)
    assert ran.code == 3, ran.stdout


def test_tasks_of_a_group_are_rated(vmtool_child, make_group):
    join = make_group(pids__max=4)
    ran = vmtool_child("doctor", "--json", "--backing", "host", before=join)
    assert ran.code == 0, ran.stderr
    found = finding(ran.document, "task-limit")
    assert found["rating"] == "problem"
    assert "pids.max of control group" in found["message"]
    assert "TasksMax= of the unit" in found["remedy"]


@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_run_that_needs_more_tasks_than_the_group_has_is_refused(
    vmtool_child, make_group, threads
):
    join = make_group(pids__max=4)
    ran = vmtool_child("stress", "--cycles", "30", "--threads", threads, before=join)
    assert ran.code == 5, ran.stderr
    assert "pids.max of control group" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_process_can_be_started_where_one_more_task_is_allowed(vmtool_child, make_group):
    """Whether a filter refuses threads is found out by a thread, which took the last task."""
    join = make_group(pids__max=2)
    ran = vmtool_child(
        "limits", "commit", "--method", "fixed", before=join + refusing("userfaultfd")
    )
    assert ran.code == 0, ran.stderr


def test_workers_that_leave_nothing_beside_their_own_memory_are_told(vmtool_child, make_group):
    """The group had room, and raising its limit was the only remedy."""
    join = make_group(memory__max=256 * MIB)
    ran = vmtool_child("stress", "--workers", "8", "--cycles", "20", before=join)
    assert ran.code == 5, ran.stderr
    assert "8 workers need 20 MiB each of their own" in ran.stderr
    assert "hint: use fewer --workers, or raise the limit of that control group" in ran.stderr


def test_workers_that_do_not_fit_beside_their_memory_are_refused(vmtool_child, make_group):
    """13 of 100 workers were killed, with a smaller budget as the hint."""
    join = make_group(memory__max=1024 * MIB)
    many = ("--workers", "100", "--capacity", "4MiB", "--budget", "64MiB", "--granule", "64KiB")
    ran = vmtool_child("stress", *many, "--cycles", "20", before=join)
    assert ran.code == 5, ran.stderr
    assert "100 workers need 20 MiB each of their own" in ran.stderr
    assert "fewer --workers" in ran.stderr


#: A root that cannot be written, as with docker run --read-only; what else is mounted stays.
READ_ONLY_ROOT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(flags):
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(flags), None):
        sys.exit(77)
if libc.unshare(0x20000):  # CLONE_NEWNS
    sys.exit(77)
mount(0x44000)  # MS_REC | MS_PRIVATE
mount(0x1021)  # MS_REMOUNT | MS_BIND | MS_RDONLY
try:
    open("/vmtool-test", "w")
    sys.exit(77)
except OSError:
    pass
"""
#: The same check in less time.
SHORT_CHECK = """
import functools
import vmtool.check as module
module.run_check = functools.partial(module.run_check, stress_ns=5 * 10**8, matrix_ns=3 * 10**8)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--backing", "host", "--json", "--quiet"],
        ["doctor", "--json", "--backing", "host"],
        ["stress", "--cycles", "60", "--json"],
        ["kv-estimate", "gemma-3-1b", "--budget", "auto", "--weights", "none", "--json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_strangers_container(vmtool_child, make_group, arguments):
    """256 MiB, 32 tasks, a read-only root, another user, and a runtime's usual filter."""
    if os.getuid():
        pytest.skip("the groups are made by root")
    filters = refusing("clone3", code=38) + refusing("mbind", "userfaultfd")
    join = make_group(memory__max=256 * MIB, pids__max=32)
    before = join + READ_ONLY_ROOT + OTHER_USER + filters
    ran = vmtool_child(*arguments, before=before + SHORT_CHECK * (arguments[0] == "check"))
    if ran.code == 77:
        pytest.skip("the root cannot be made read-only here, or root lacks a capability")
    assert ran.code == 0, ran.stderr
    document = ran.document
    if arguments[0] == "doctor":
        assert "256 MiB of control group" in finding(document, "cgroup-limit")["message"]
        assert "pids.max" in finding(document, "task-limit")["message"]
        assert 100 * MIB < document["safe_bytes"] < 200 * MIB
    elif arguments[0] == "stress":
        assert document["outcome"] == "complete"
        assert document["settings"]["budget_bytes"] < 128 * MIB
    elif arguments[0] == "check":
        (host,) = document["memory"]
        assert host["stress"]["outcome"] == "complete"
        assert host["stress"]["peak_committed_bytes"] < 200 * MIB
        assert "256 MiB of control group" in str(document["findings"])
    else:
        assert 100 * MIB < document["budget"]["total_bytes"] < 256 * MIB


def test_the_limit_of_processes_of_a_user_refuses_a_plan(vmtool_child):
    """RLIMIT_NPROC does not hold for root: another user meets it."""
    if os.getuid():
        pytest.skip("only root can become another user")
    if vmtool_child("--version", before=OTHER_USER).code == 77:
        pytest.skip("root lacks a capability here that lets another user read this Python")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))\n"
    ran = vmtool_child("stress", "--cycles", "30", before=OTHER_USER + limit)
    assert ran.code == 5, ran.stderr
    assert "RLIMIT_NPROC is 2" in ran.stderr
    assert "`nproc` in /etc/security/limits.conf" in ran.stderr
    rated = vmtool_child("doctor", "--json", "--backing", "host", before=OTHER_USER + limit)
    assert finding(rated.document, "task-limit")["rating"] == "problem"


def test_the_whole_budget_is_held_in_a_group(vmtool_child, make_group):
    join = make_group(memory__max=256 * MIB)
    ran = vmtool_child("stress", "--hold", "--runs", "1", "--cycles", "20", "--json", before=join)
    assert ran.code == 0, ran.stderr
    document = ran.document
    budget, granule = (document["settings"][f"{name}_bytes"] for name in ("budget", "granule"))
    assert budget - granule < document["hold"]["bytes"] <= budget < 256 * MIB
    assert document["hold"]["resident_bytes"] >= document["hold"]["bytes"]
    assert document["budget_reached"]


def test_holding_more_than_the_group_has_is_not_passed(vmtool_child, make_group):
    """Without --hold the same run ended with 0, as it never came near its budget."""
    join = make_group(memory__max=96 * MIB)
    sizes = ("--capacity", "256MiB", "--budget", "256MiB", "--force")
    ran = vmtool_child(
        *("stress", "--hold", "--runs", "1", "--cycles", "20", "--json"), *sizes, before=join
    )
    assert ran.code == 1, ran.stderr
    (accident,) = ran.document["accidents"]
    assert "control group" in accident["cause"]
    assert not ran.document["budget_reached"]
    assert ran.document["peak_committed_bytes"] is None


def throttled(make_group):
    """Return what enters a group with a memory.high that is passed, and a run that does so."""
    join = make_group(memory__high=96 * MIB)
    sizes = ("--capacity", "256MiB", "--budget", "256MiB", "--force")
    return join, ("stress", "--hold", "--runs", "1", "--json", *sizes)


def test_a_run_above_memory_high_is_ended_and_named(vmtool_child, make_group):
    """The kernel slows down vmtool too, which then neither found the cause nor heard a signal."""
    join, arguments = throttled(make_group)
    ran = vmtool_child(*arguments, "--hang-timeout", "3s", before=join)
    assert ran.code == 1, ran.stderr
    (accident,) = ran.document["accidents"]
    assert accident["kind"] == "hang"
    assert re.search(
        r"is above memory\.high, 96 MiB, with \d.* in use: the kernel slowed its tasks down \d",
        accident["cause"],
    )
    assert "raise memory.high" in accident["hint"]


def test_a_signal_ends_a_run_above_memory_high(make_group):
    join, arguments = throttled(make_group)
    program = f"{join}import sys\nfrom vmtool.cli.app import run\nsys.exit(run(sys.argv[1:]))"
    events = Path(join.split("'")[1]).parent / "memory.events"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--hang-timeout", "600s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        while "high 0" in events.read_text(encoding="ascii"):
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["outcome"] == "interrupted"
    assert "is above memory.high, 96 MiB" in document["accidents"][0]["cause"]


def test_a_kill_at_the_limit_of_a_group_above_is_attributed_to_that_group(vmtool_child, make_group):
    """Version 1 counts a kill only in the victim's own group, which has no limit here; 2 in both."""
    join = make_group(memory__max=96 * MIB)
    above = Path(join.split("'")[1]).parent
    below = above / "below"
    if (above / "memory.events").exists():
        (above / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    try:
        below.mkdir()
        sizes = ("--capacity", "256MiB", "--budget", "256MiB", "--force", "--cycles", "20")
        inside = f"open({str(below / 'cgroup.procs')!r}, 'w').write('0')\n"
        ran = vmtool_child("stress", "--hold", "--runs", "1", "--json", *sizes, before=inside)
    finally:
        below.rmdir()
    assert ran.code == 1, ran.stderr
    (accident,) = ran.document["accidents"]
    assert f"the limit of 96 MiB of control group {above}" in accident["cause"]


def test_a_matrix_of_which_nothing_fits_is_refused_with_the_limit(vmtool, monkeypatch):
    from vmtool.machine import read_facts

    level = CgroupLevel("/cg/app", 2, limit_bytes=40 * MIB, used_bytes=20 * MIB)
    tight = replace(read_facts(), cgroup=CgroupFacts((level,)))
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: tight)
    ran = vmtool("matrix")
    assert ran.code == 5
    assert "the control group /cg/app leaves 20 MiB of 40 MiB" in ran.stderr
    assert "/cg/app/memory.max" in ran.stderr


def test_a_probe_that_the_group_kills_is_no_number(vmtool_child, make_group):
    join = make_group(memory__max=30 * MIB)
    ran = vmtool_child("limits", "mappings", "--method", "fixed", "--json", before=join)
    if not ran.stdout:
        pytest.skip("Python needs more than this group has")
    (method,) = ran.document["kinds"][0]["methods"]
    if method["outcome"] != "not found":
        pytest.skip("the kernel let the probe have more than the group's limit")
    assert ran.code == 1
    assert method["reached"] is None
    assert "control group" in method["cause"]
    assert "no limit was found" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("matrix",),
        ("kv-replay", "synthetic:requests=3", "--model", "gemma-3-1b", "--backing", "host"),
        ("stress", "--cycles", "30"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_plan_with_too_many_tasks_is_refused_with_their_limit(vmtool, monkeypatch, arguments):
    """And not with what limits memory, which has nothing to do with it."""
    from vmtool.machine import read_facts

    group = CgroupFacts(tasks=GroupLimit("/cg/app", 4, 1))
    limited = replace(read_facts(), cgroup=group)
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: limited)
    ran = vmtool(*arguments)
    assert ran.code == 5
    assert "starts 4 processes and threads; pids.max of control group /cg/app is 4" in ran.stderr
    assert "hint: raise /cg/app/pids.max" in ran.stderr
    assert "RAM" not in ran.stderr


@pytest.mark.parametrize("arguments", [("limits", "mappings"), ("guards",)], ids=" ".join)
def test_a_search_whose_attempts_cannot_be_started_is_refused_with_the_limit(
    vmtool, monkeypatch, arguments
):
    from vmtool.machine import read_facts

    limited = replace(read_facts(), cgroup=CgroupFacts(tasks=GroupLimit("/cg/app", 1, 1)))
    monkeypatch.setattr("vmtool.probes.question_process.read_facts", lambda: limited)
    ran = vmtool(*arguments)
    assert ran.code == 5
    assert "cause: pids.max of control group /cg/app is 1, 1 in use" in ran.stderr
    assert "hint: raise /cg/app/pids.max" in ran.stderr


def test_the_budget_that_a_replay_chooses_passes_its_own_preflight(
    vmtool, monkeypatch, machine_facts, tmp_path
):
    """In a group of 54 to 64 MiB the budget was refused that it had chosen a moment before."""
    used = iter([18, *[20] * 99])  # it loads what it needs in between

    def read():
        level = CgroupLevel("/cg/app", 1, limit_bytes=64 * MIB, used_bytes=next(used) * MIB)
        return replace(machine_facts, cgroup=CgroupFacts((level,)))

    monkeypatch.setattr("vmtool.machine.read_facts", read)
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n', encoding="utf-8")
    ran = vmtool("kv-replay", str(trace), "--model", "gemma-3-1b", "--backing", "host")
    assert ran.code == 0, ran.stderr


def test_a_replay_of_which_nothing_fits_is_refused_with_the_limit(vmtool, monkeypatch, tmp_path):
    from vmtool.machine import read_facts

    level = CgroupLevel("/cg/app", 2, limit_bytes=100 * MIB, used_bytes=40 * MIB)
    tight = replace(read_facts(), cgroup=CgroupFacts((level,)))
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: tight)
    trace = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": 9000, "output_length": 5}\n'
    trace.write_text(2 * line, encoding="utf-8")
    arguments = ("kv-replay", str(trace), "--model", "gemma-3-1b", "--json")
    ran = vmtool(*arguments, "--backing", "host")
    assert ran.code == 5, ran.stderr
    assert ran.document["requests"]["too_large"] == 2
    assert "no request fits into the 11 MiB that is safe to commit" in ran.stderr
    assert "the control group /cg/app leaves 60 MiB of 100 MiB" in ran.stderr
    # Of a budget that was given it is the answer.
    assert vmtool(*arguments, "--backing", "host", "--budget", "10MiB").code == 0


def test_a_replay_without_memory_is_refused_with_the_limit(vmtool, monkeypatch, tmp_path):
    from vmtool.machine import read_facts

    level = CgroupLevel("/cg/app", 2, limit_bytes=40 * MIB, used_bytes=40 * MIB)
    tight = replace(read_facts(), cgroup=CgroupFacts((level,)))
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: tight)
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n', encoding="utf-8")
    ran = vmtool("kv-replay", str(trace), "--model", "gemma-3-1b", "--backing", "host")
    assert ran.code == 5, ran.stderr
    assert "nothing is safe to commit: the control group /cg/app leaves 0 B of 40 MiB" in ran.stderr
