"""``vmtool doctor``, on this machine and on machines made worse in a child process."""

import io
import re
import sys

import pytest
from rich.console import Console

from vmtool.cli import doctor as module
from vmtool.machine import read_facts
from vmtool.machine.doctor.examine import examine
from vmtool.machine.doctor.findings import Finding, Rating
from vmtool.memory.rlimits_and_privileges import has_capability
from vmtool.report.doctor import to_text
from vmtool.results.doctor import DoctorResult

linux = pytest.mark.skipif(sys.platform != "linux", reason="these limits are Linux's")


def raised(document, kind):
    """Return the findings of one kind; there must be exactly one, with one remedy."""
    (found,) = [each for each in document["machine_findings"] if each["kind"] == kind]
    assert found["remedy"]
    return found


def test_this_machine_is_rated_and_exit_is_0(vmtool):
    ran = vmtool("doctor", "--json")
    assert ran.code == 0
    document = ran.document
    assert document["schema"] == "vmtool.doctor"
    findings = document["machine_findings"] + document["device_findings"]
    assert sum(document["counts"].values()) == len(findings)
    for each in findings:
        assert (each["rating"] == "ok") == (each["remedy"] is None)


def test_the_text_has_both_sections_and_a_count(vmtool):
    ran = vmtool("doctor")
    assert ran.code == 0
    assert "this machine" in ran.stdout
    assert "CUDA" in ran.stdout
    assert re.fullmatch(r"\d+ problems?, \d+ notes?, \d+ ok", ran.stdout.splitlines()[0])


def test_strict_makes_a_problem_exit_3(vmtool, monkeypatch):
    bad = Finding("mapping-limit", Rating.PROBLEM, "full", "sysctl -w vm.max_map_count=1")
    monkeypatch.setattr("vmtool.machine.doctor.examine.examine", lambda _: (bad,))
    assert vmtool("doctor").code == 0
    ran = vmtool("doctor", "--strict")
    assert ran.code == 3
    assert "full" in ran.stdout
    assert "1 problem, the first: mapping-limit" in ran.stderr


def test_strict_is_0_without_a_problem(vmtool, monkeypatch):
    fine = Finding("swap", Rating.NOTE, "none", "add some")
    monkeypatch.setattr("vmtool.machine.doctor.examine.examine", lambda _: (fine,))
    assert vmtool("doctor", "--strict").code == 0


@linux
@pytest.mark.parametrize(
    ("limit", "kind", "rating", "remedies"),
    [
        ("RLIMIT_AS", "address-space-limit", "problem", ("ulimit -v unlimited", "LimitAS=")),
        ("RLIMIT_DATA", "data-limit", "problem", ("ulimit -d unlimited", "LimitDATA=")),
    ],
)
def test_a_limit_set_on_the_process_is_a_problem_with_its_command(
    vmtool_child, limit, kind, rating, remedies
):
    before = f"import resource; resource.setrlimit(resource.{limit}, (256 << 20, 256 << 20))"
    ran = vmtool_child("doctor", "--json", before=before)
    assert ran.code == 0, ran.stderr
    found = raised(ran.document, kind)
    assert found["rating"] == rating
    assert "256 MiB" in found["message"]
    # The hard limit is set too: only with CAP_SYS_RESOURCE does the shell raise it.
    assert remedies[not has_capability(24)] in found["remedy"]


@linux
@pytest.mark.parametrize(
    ("limit", "kind"), [("RLIMIT_AS", "address-space-limit"), ("RLIMIT_DATA", "data-limit")]
)
def test_a_limit_on_the_process_bounds_what_is_safe_and_the_budget_of_an_estimate(
    vmtool_child, limit, kind
):
    before = f"import resource; resource.setrlimit(resource.{limit}, (1 << 30, 1 << 30))"
    document = vmtool_child("doctor", "--json", before=before).document
    if document["machine"]["memory"]["available_bytes"] < 2 << 30:
        pytest.skip("this machine has too little memory for a limit of 1 GiB to bind")
    assert document["limiting_bound"] == kind
    assert document["safe_bytes"] < document["available_bytes"] < 1 << 30
    text = vmtool_child("doctor", before=before).stdout
    assert f"is safe to commit: {limit} is 1 GiB and " in text
    assert f"(limited by {limit})" in vmtool_child("granularity", before=before).stdout

    estimate = vmtool_child(
        "kv-estimate",
        "gemma-3-1b",
        "--budget",
        "auto",
        "--weights",
        "none",
        "--json",
        before=before,
    ).document
    assert 0 < estimate["budget"]["total_bytes"] < 1 << 30


@linux
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_what_is_safe_can_be_grown_to_and_more_is_refused(vmtool_child, limit):
    before = f"import resource; resource.setrlimit(resource.{limit}, (256 << 20, 256 << 20))"
    grow = ("grow", "--against", "nothing", "--quiet", "--to")
    refused = vmtool_child(*grow, "256MiB", before=before)
    assert refused.code == 5
    safe = int(refused.stderr.partition("use --to ")[2].partition(" ")[0])
    # What the interpreter itself takes differs from run to run by some KiB.
    ran = vmtool_child(*grow, str(safe - (4 << 20)), before=before)
    assert ran.code == 0, ran.stderr


@linux
def test_a_process_full_of_areas_is_a_problem(vmtool_child):
    before = """
import mmap
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import read_limits
limit = read_limits().max_mappings
if limit <= 70000:
    backing = open_backing()
    page = backing.granularity
    crowd = backing.reserve(2 * limit * page)
    for index in range((limit - 3000) // 2):
        backing.commit(crowd, 2 * index * page, page)
"""
    ran = vmtool_child("doctor", "--json", before=before)
    assert ran.code == 0, ran.stderr
    process = ran.document["machine"]["process"]
    if process["max_mappings"] > 70000:
        pytest.skip(f"vm.max_map_count is {process['max_mappings']}: too many to fill in a test")
    found = raised(ran.document, "mapping-limit")
    assert found["rating"] == "problem"
    assert f"{process['mappings']:,} of {process['max_mappings']:,}" in found["message"]


@linux
def test_huge_pages_disabled_for_the_process_are_found(vmtool_child):
    # PR_SET_THP_DISABLE is 41 (include/uapi/linux/prctl.h).
    before = "import ctypes; assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0"
    ran = vmtool_child("doctor", "--json", before=before)
    if ran.document["machine"]["huge_pages"]["thp_mode"] is None:
        pytest.skip("this kernel has no transparent huge pages")
    assert raised(ran.document, "huge-pages-disabled")["rating"] == "note"


@linux
def test_a_control_group_is_found_by_doctor_and_refuses_a_growth(vmtool_child, control_group):
    group = control_group
    ran = vmtool_child("doctor", "--json", before=group.join)
    assert ran.code == 0, ran.stderr
    found = raised(ran.document, "cgroup-limit")
    assert f"64 MiB of control group {group.path} (v{group.version})" in found["message"]

    grown = vmtool_child("grow", "--to", "256MiB", before=group.join)
    assert grown.code == 5
    assert f"the control group {group.path} leaves" in grown.stderr


@linux
def test_a_kill_at_the_limit_of_a_control_group_is_attributed_to_it(control_group):
    import subprocess

    from vmtool.machine import cgroups, read_facts
    from vmtool.machine.cgroups import CgroupFacts
    from vmtool.machine.kernel_files import KernelFiles
    from vmtool.machine.killed_or_slowed_children import diagnose_kill

    group = control_group

    def facts():
        from dataclasses import replace

        level = cgroups.read_level(KernelFiles(), group.version, group.path)
        return replace(read_facts(), cgroup=CgroupFacts((level,)))

    before = facts()
    program = f"{group.join}\nkeep = bytearray(b'x') * (256 << 20)"
    child = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    if child.returncode == 0:
        pytest.skip("the kernel let the child swap or exceed the limit")
    assert child.returncode == -9
    diagnosis = diagnose_kill(before, facts())
    assert diagnosis.kind == "cgroup-limit"
    assert group.path in diagnosis.cause


@pytest.mark.parametrize("width", [40, 80, 120])
def test_findings_fold_and_are_not_cut(width):
    finding = Finding("mapping-limit", Rating.PROBLEM, "65529 of 65530 areas " * 6, "sysctl " * 12)
    result = DoctorResult.of(read_facts(), (finding,), ())
    out = io.StringIO()
    to_text(result, Console(file=out, width=width, highlight=False, legacy_windows=False))
    assert "…" not in out.getvalue()
    assert out.getvalue().count("65529") == 6
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= width


def test_the_report(golden, machine_facts):
    absent = Finding("no-cuda", Rating.NOTE, "no CUDA driver is installed", "use --backing host")
    result = DoctorResult.of(machine_facts, examine(machine_facts), (absent,))
    golden("doctor", lambda console: to_text(result, console))


def test_help_examples_work(vmtool, help_examples):
    examples = help_examples(module.command)
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*example).code == 0
