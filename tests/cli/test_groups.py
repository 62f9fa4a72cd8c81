"""Real control groups with limits of memory and of tasks, made by the test where the kernel lets it."""

import json
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from seccomp import refusing

from vmtool.machine.facts import CgroupFacts, CgroupLevel
from vmtool.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


OTHER_USER = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
#: capset(2) with version 3 of its header: nothing is effective, permitted or inheritable.
NO_CAPABILITIES = """
import ctypes, struct
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
assert ctypes.CDLL(None).capset(header, ctypes.create_string_buffer(24)) == 0
"""


@pytest.fixture
def make_group():
    """Return a function that makes a group with files set, and gives what enters it."""
    made = []

    def make(controller, **files):
        for root in (Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup")):
            names = {key.replace("__", "."): value for key, value in files.items()}
            if "memory.max" in names and root.name == "memory":
                names["memory.limit_in_bytes"] = names.pop("memory.max")
            group = root / f"vmtool-{controller}-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                for name, value in names.items():
                    (group / name).write_text(str(value), encoding="ascii")
            except OSError:
                group.rmdir()
                continue
            made.append(group)
            return f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        pytest.skip("no control group can be made here (needs root and a writable hierarchy)")

    yield make
    for group in made:
        group.rmdir()


def finding(document, kind):
    """Return the one finding of a kind about the machine."""
    (found,) = [each for each in document["machine_findings"] if each["kind"] == kind]
    return found


def test_a_file_that_was_read_twice_does_not_make_the_budget_smaller(
    vmtool_child, make_group, tmp_path
):
    join = make_group("memory", memory__max=256 * MIB)
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
    join = make_group("memory", memory__max=250 * MIB)
    assert vmtool_child("grow", "--to", str(mmap.PAGESIZE), before=join).code == 0
    assert vmtool_child("doctor", "--strict", "--backing", "host", before=join).code in {0, 3}
    refused = vmtool_child("grow", "--to", "240MiB", before=join)
    assert refused.code == 5
    assert "of 250 MiB" in refused.stderr


def test_a_group_that_has_hardly_anything_is_a_problem_and_refuses(vmtool_child, make_group):
    join = make_group("memory", memory__max=50 * MIB)
    hold = "kept = bytearray(b'x') * (24 << 20)\n"
    ran = vmtool_child("doctor", "--strict", "--json", "--backing", "host", before=join + hold)
    if ran.code in {-9, 137}:
        pytest.skip("Python needs more than this group has")
    assert finding(ran.document, "cgroup-limit")["rating"] == "problem"
    assert ran.code == 3
    refused = vmtool_child("grow", "--to", "16MiB", before=join + hold)
    assert refused.code == 5
    assert "the control group" in refused.stderr


def test_tasks_of_a_group_are_rated(vmtool_child, make_group):
    join = make_group("pids", pids__max=6)
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
    join = make_group("pids", pids__max=4)
    ran = vmtool_child("stress", "--cycles", "30", "--threads", threads, before=join)
    assert ran.code == 5, ran.stderr
    assert "pids.max of control group" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_workers_that_do_not_fit_beside_their_memory_are_refused(vmtool_child, make_group):
    """13 of 100 workers were killed, with a smaller budget as the hint."""
    join = make_group("memory", memory__max=1024 * MIB)
    many = ("--workers", "100", "--capacity", "4MiB", "--budget", "64MiB", "--granule", "64KiB")
    ran = vmtool_child("stress", *many, "--cycles", "20", before=join)
    assert ran.code == 5, ran.stderr
    assert "100 workers take 20 MiB each for themselves" in ran.stderr
    assert "fewer --workers" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--json", "--backing", "host"],
        ["stress", "--cycles", "60", "--json"],
        ["kv-estimate", "gemma-3-1b", "--budget", "auto", "--weights", "none", "--json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_strangers_container(vmtool_child, make_group, arguments):
    """256 MiB, 32 tasks, no root, no capability, and a filter as a container's runtime sets it."""
    if os.getuid():
        pytest.skip("the groups are made by root")
    join = make_group("memory", memory__max=256 * MIB) + make_group("pids", pids__max=32)
    become = OTHER_USER
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)\n"
    if vmtool_child("--version", before=become + starts).code:
        become = NO_CAPABILITIES  # this Python is where only its owner can run it
    ran = vmtool_child(*arguments, before=join + become + refusing("clone3", code=38))
    assert ran.code == 0, ran.stderr
    document = ran.document
    if arguments[0] == "doctor":
        assert "256 MiB of control group" in finding(document, "cgroup-limit")["message"]
        assert "pids.max" in finding(document, "task-limit")["message"]
        assert 100 * MIB < document["safe_bytes"] < 200 * MIB
    elif arguments[0] == "stress":
        assert document["outcome"] == "complete"
        assert document["settings"]["budget_bytes"] < 128 * MIB
    else:
        assert 100 * MIB < document["budget"]["total_bytes"] < 256 * MIB


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
    join = make_group("memory", memory__max=30 * MIB)
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


@pytest.mark.parametrize("arguments", [["doctor"], ["stress", "--cycles", "40", "--runs", "1"]])
def test_a_read_only_root(arguments, tmp_path):
    """What vmtool writes for itself it writes to shared memory, and goes on where that is missing."""
    script = (
        f"mount --make-rprivate / && mount -o remount,bind,ro / && ! touch {tmp_path}/x && "
        f'exec "$@"'
    )
    command = [sys.executable, "-m", "vmtool", *arguments, "--json"]
    ran = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "-", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )
    if not ran.stdout and "vmtool" not in ran.stderr:
        pytest.skip(f"the root cannot be made read-only here: {ran.stderr.strip()[-100:]}")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema"] == f"vmtool.{arguments[0]}"
