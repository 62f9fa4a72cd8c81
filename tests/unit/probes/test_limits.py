"""The search for a limit is exact where attempts allow, and bounded in memory where each takes memory."""

import json
import mmap
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmtool.errors import RefusedError
from vmtool.machine import read_facts
from vmtool.machine.cgroups import CgroupFacts, CgroupLevel
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.probes.limits import find_limits, largest_reservation, search_ceiling
from vmtool.probes.question_process import Answer, ask
from vmtool.units import GIB, MIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
posix = pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")


@pytest.fixture
def tried(monkeypatch):
    """Return the numbers that a search tried on a machine that refuses nothing."""
    numbers = []

    def ask(_kind, _backing, _method, number, *, stopping):
        if stopping():
            return None
        numbers.append(number)
        return Answer(works=True, reached=number)

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    return numbers


@posix
def test_what_a_commit_faults_in_stays_within_what_is_safe(tried):
    safe = read_facts().safe_bytes
    (found,) = find_limits("commit", "host", ["advise"], lambda _tries: None).methods
    assert found.refused is None
    assert found.reached == max(tried) <= safe


@posix
def test_what_takes_no_memory_is_tried_further_than_any_address_space(tried):
    find_limits("reserve", "host", ["advise"], lambda _tries: None)
    assert max(tried) > 1 << 50


@posix
def test_an_interrupted_search_keeps_what_it_found(tried):
    methods = ["advise", "fixed"]
    report = find_limits(
        *("reserve", "host", methods, lambda _: None), stopping=lambda: len(tried) == 3
    )
    assert tried == [GIB, 2 * GIB, 4 * GIB]
    (found,) = report.methods  # the other was not begun
    assert (found.method, found.outcome) == ("advise", "partial")
    assert (found.reached, found.refused, found.tries) == (4 * GIB, None, 3)


@posix
def test_an_interrupt_between_two_methods_leaves_the_second_out(tried):
    report = find_limits(
        *("mappings", "host", ["fixed", "advise"], lambda _: None),
        stopping=lambda: len(tried) == 1,
    )
    assert [(found.method, found.outcome) for found in report.methods] == [("fixed", "none")]


@posix
def test_a_search_that_never_began_is_left_out(tried):
    report = find_limits("reserve", "host", ["fixed"], lambda _: None, stopping=lambda: True)
    assert (report.methods, tried) == ((), [])


def test_a_probe_that_takes_long_is_ended_when_the_user_stops(monkeypatch):
    pipe = subprocess.PIPE
    program = [sys.executable, "-c", "import time; time.sleep(100)"]
    child = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8")
    monkeypatch.setattr("vmtool.probes.question_process.start_child", lambda *_: child)
    asked = iter([False, False, True])
    assert ask("reserve", "host", "fixed", GIB, stopping=lambda: next(asked)) is None
    assert child.returncode


@linux
def test_the_limit_of_the_heuristic_is_found_in_two_attempts_and_named(monkeypatch):
    facts = read_facts()
    total = facts.memory.total_bytes + facts.memory.swap_total_bytes
    heuristic = replace(facts, commit=replace(facts.commit, mode=0))
    monkeypatch.setattr("vmtool.probes.limits.read_facts", lambda: heuristic)

    def ask(_kind, _backing, _method, number, *, stopping):
        works = number <= total
        return Answer(works, number, None if works else "ENOMEM", cause=None if works else "why")

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    (found,) = find_limits("commit", "host", ["fixed"], lambda _tries: None).methods
    assert (found.reached, found.refused, found.tries) == (total, total + mmap.PAGESIZE, 2)
    assert (found.error, found.cause) == ("ENOMEM", "why")


@linux
@pytest.mark.parametrize("offset", [-(1 << 30), 5 << 30])
def test_a_ceiling_that_is_not_the_likely_one_is_searched_for(monkeypatch, offset):
    memory = read_facts().memory
    limit = memory.total_bytes + memory.swap_total_bytes + offset

    def ask(_kind, _backing, _method, number, *, stopping):
        return Answer(works=number <= limit, reached=number)

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    (found,) = find_limits("commit", "host", ["fixed"], lambda _tries: None).methods
    assert found.reached <= limit < found.refused
    assert found.refused - found.reached <= limit // 1000
    assert found.tries <= 28


@linux
def test_a_commit_after_which_nothing_works_is_no_ceiling():
    """One mmap may go past RLIMIT_DATA, and whatever comes next is refused."""
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
from vmtool.probes.question_process import main
main(["commit", "host", "fixed", str(512 << 20)])
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    answer = json.loads(ran.stdout)
    assert not answer["works"]
    assert "RLIMIT_DATA is 256 MiB" in answer["cause"]


#: Runs the probe as a process that RLIMIT_MEMLOCK limits, also where root runs the tests.
LIMITED = """
import ctypes, os, resource, sys
limit, arguments = int(sys.argv[1]), sys.argv[2:]
libc = ctypes.CDLL(None)
libc.prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK: takes effect with exec
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
os.execv(sys.executable, [sys.executable, "-m", *arguments])
"""


def run_limited(limit, *arguments):
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


@linux
def test_what_can_be_locked_is_what_the_limit_says_and_costs_are_measured():
    ran = run_limited(1 << 20, "vmtool", "limits", "lock", "--json", "-q")
    if "forbids locking" in ran.stdout + ran.stderr:
        pytest.skip("a security policy forbids mlock")
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(ran.stdout)["kinds"][0]["methods"]
    assert (found["reached"], found["refused"]) == (1 << 20, (1 << 20) + mmap.PAGESIZE)
    assert found["tries"] == 2
    assert found["per_gib_ns"] > 0
    assert "mlock(0x" in found["error"]
    assert found["cause"] == "RLIMIT_MEMLOCK is 1 MiB and the process has locked 0 B"


@linux
def test_a_process_that_may_lock_nothing_says_so_at_once():
    ran = run_limited(
        0, "vmtool.probes.question_process", "lock", "host", "fixed", str(mmap.PAGESIZE)
    )
    answer = json.loads(ran.stdout)
    assert answer["works"] is False
    assert "EPERM" in answer["error"]
    assert "RLIMIT_MEMLOCK is 0 B" in answer["cause"]


@posix
def test_locking_ends_at_a_gib_where_nothing_limits_it(tried, monkeypatch):
    monkeypatch.setattr("vmtool.memory.posix.locking.lock_limit", lambda: None)
    (found,) = find_limits("lock", "host", ("fixed",), lambda _tries: None).methods
    assert max(tried) <= GIB
    assert (found.outcome, found.reached) == ("none", max(tried))


@posix
def test_a_search_that_ends_at_what_is_safe_names_the_limit(tried, monkeypatch):
    level = CgroupLevel("/cg/app", 1, limit_bytes=60 * MIB, used_bytes=20 * MIB)
    tight = replace(read_facts(), cgroup=CgroupFacts((level,)))
    monkeypatch.setattr("vmtool.probes.limits.read_facts", lambda: tight)
    monkeypatch.setattr("vmtool.memory.posix.locking.lock_limit", lambda: None)
    (found,) = find_limits("lock", "host", ("fixed",), lambda _tries: None).methods
    assert max(tried) == 12 * MIB
    assert "half of what is safe: the control group /cg/app leaves 40 MiB of 60" in found.cause


def test_a_probe_that_died_is_not_a_number(monkeypatch):
    monkeypatch.setattr(
        "vmtool.probes.limits.ask",
        lambda *_arguments, **_options: Answer(None, 0, "it got SIGKILL", signal_number=9),
    )
    (found,) = find_limits("mappings", "host", host_methods()[:1], lambda _tries: None).methods
    assert (found.outcome, found.reached) == ("not found", None)
    (found,) = find_limits("reserve", "host", host_methods()[:1], lambda _tries: None).methods
    assert (found.outcome, found.reached) == ("not found", None)
    assert found.error == "the process that tried it ended: it got SIGKILL"


@posix
def test_where_nothing_is_safe_a_commit_that_faults_in_is_refused(monkeypatch):
    facts = read_facts()
    none = replace(facts, memory=replace(facts.memory, available_bytes=1 << 20))
    monkeypatch.setattr("vmtool.probes.limits.read_facts", lambda: none)
    with pytest.raises(RefusedError, match="advise commits by faulting memory in"):
        find_limits("commit", "host", ["advise"], lambda _tries: None)


@linux
def test_a_limit_of_addresses_does_not_keep_areas_from_being_counted():
    """With 4 MiB left there is no place for any; what 24 MiB allow are as many as it has room for."""
    program = """
import json, resource
from dataclasses import asdict
from vmtool.memory.counters import read_limits
from vmtool.probes.question_process import answer
for left in (4 << 20, 24 << 20, 1 << 30):
    limit = read_limits().address_space_bytes + left
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    print(json.dumps(asdict(answer("mappings", "host", "fixed", 20_000))))
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    none, some, all_of_them = (json.loads(line) for line in ran.stdout.splitlines())
    assert (none["works"], none["reached"]) == (None, 0)
    assert (some["works"], some["reached"] > 1_000) == (False, True)
    for refused in (none, some):
        assert "mmap(NULL, " in refused["error"]
        assert "RLIMIT_AS is" in refused["cause"]
    assert all_of_them["works"]
    assert all_of_them["reached"] > 19_900


@linux
def test_a_method_whose_commits_add_no_areas_has_no_limit_of_areas():
    """It has as many areas after 5,000 commits as before; ``fixed`` adds two with each."""
    answer = ask("mappings", "host", "advise", 10_000)
    assert answer.works
    assert 0 < answer.reached < 5_000
    assert answer.cause == "its commits add no memory areas"
    other = ask("mappings", "host", "fixed", 10_000)
    assert (other.works, other.cause) == (True, None)
    assert other.reached > 9_900


@settings(deadline=None)
@given(st.integers(0, (1 << 47) // 4096))
def test_the_exact_limit_is_found_within_64_tries(pages):
    limit = pages * 4096
    seen = []

    def works(nbytes):
        assert nbytes > 0
        assert nbytes % 4096 == 0
        seen.append(nbytes)
        return nbytes <= limit

    good, bad, tries = search_ceiling(works, unit=4096, tries=64)
    assert (good, bad) == (limit, limit + 4096)
    assert tries == len(seen) <= 64


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 34))
def test_nothing_beyond_the_largest_size_is_tried_and_something_always_is(most, limit):
    def works(nbytes):
        assert nbytes <= max(most, 4096)
        return nbytes <= limit

    good, _, _ = search_ceiling(works, unit=4096, tries=64, most=most)
    assert min(most, limit) < 8192 or good >= 4096


@given(st.integers(1, 20), st.integers(1, 1 << 46))
def test_tries_are_never_exceeded_and_the_answer_is_true_as_far_as_it_goes(tries, limit):
    seen = []

    def works(nbytes):
        seen.append(nbytes)
        return nbytes <= limit

    good, bad, used = search_ceiling(works, unit=4096, tries=tries)
    assert used == len(seen) <= tries
    assert good <= limit
    assert bad is None or bad > limit


def test_without_any_limit_the_search_ends_where_64_bits_do():
    good, bad, tries = search_ceiling(lambda _: True, unit=4096, tries=64)
    assert (good, bad) == (1 << 62, None)
    assert tries == 33


def test_a_unit_larger_than_the_first_size_is_kept():
    good, bad, _ = search_ceiling(lambda n: n <= 6 * GIB, unit=2 * GIB, tries=64)
    assert (good, bad) == (6 * GIB, 8 * GIB)


def test_the_host_really_grants_what_was_found_or_nearly():
    backing = open_backing()
    found = largest_reservation(backing)
    assert found.tries <= 64
    assert found.refused_bytes is None or found.error
    # Half of it leaves room for what else was mapped meanwhile.
    half = found.works_bytes // 2 // backing.granularity * backing.granularity
    backing.unreserve(backing.reserve(half))


def test_a_search_that_is_ended_says_how_far_it_came():
    def works(limit, last):
        seen = []

        def answer(nbytes):
            if len(seen) == last:
                return None
            seen.append(nbytes)
            return nbytes <= limit

        return answer

    assert search_ceiling(works(6 * GIB, 0), unit=4096, tries=64) == (0, None, 0)
    assert search_ceiling(works(6 * GIB, 2), unit=4096, tries=64) == (2 * GIB, None, 2)
    # 1, 2 and 4 work, 8 does not, 6 works.
    assert search_ceiling(works(6 * GIB, 5), unit=4096, tries=64) == (6 * GIB, 8 * GIB, 5)
