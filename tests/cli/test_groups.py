"""Real control groups with limits of memory and of tasks, made by the test where the kernel lets it."""

import mmap
import os
import sys
from pathlib import Path

import pytest

from vmtool.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


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
