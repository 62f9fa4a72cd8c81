"""The report of limits says what was found, and which numbers are not limits of memory."""

from printed import printed

from vmtool.report.limits import to_text
from vmtool.results.limits import KindLimits, LimitsResult, MethodLimit
from vmtool.units import GIB


def test_the_report_of_locking_has_its_cost():
    made = result(
        "lock",
        MethodLimit(
            *("fixed", "found", 1 << 23, (1 << 23) + 4096, 2, "mlock failed: ENOMEM"),
            cause="RLIMIT_MEMLOCK is 8 MiB",
            most=GIB,
            per_gib_ns=650_000_000,
        ),
    )
    text = text_of(made)
    assert "limits: lock 8 MiB" in text
    assert "it takes 650 ms per GiB, page faults included" in text
    assert "cause: RLIMIT_MEMLOCK is 8 MiB" in text


def test_where_even_the_least_is_refused_the_answer_is_not_unknown():
    refused = MethodLimit("fixed", "found", None, 4096, 1, "mlock failed: EPERM", most=4096)
    assert text_of(result("lock", refused)).startswith(
        "limits: lock: not even the smallest size works"
    )


def result(kind, *methods, **fields):
    whole = {"complete": True, "found": True, **fields}
    return LimitsResult("host", (KindLimits(kind, methods),), **whole)


def text_of(made):
    return " ".join(" ".join(printed(lambda console: to_text(made, console), 80)).split())


def test_the_report_names_cause_and_bounds(golden):
    made = result(
        "commit",
        MethodLimit("fixed", "found", GIB, GIB + 4096, 2, "ENOMEM", "too much", 1 << 62),
        MethodLimit("advise", "none", GIB, None, 1, None, None, GIB),
    )
    golden("limits", lambda console: to_text(made, console))


def test_where_every_commit_is_granted_the_report_says_what_that_means():
    found = MethodLimit("fixed", "found", 85 << 40, (85 << 40) + 4096, 28, "ENOMEM")
    text = text_of(result("commit", found, machine={"commit": {"mode": 1}}))
    assert "commit at once 85 TiB (of addresses: vm.overcommit_memory is 1)" in text
    assert "vm.overcommit_memory is 1: every commit is granted until addresses run out" in text
    assert "vm.overcommit" not in text_of(result("commit", found, machine={"commit": {"mode": 0}}))


def test_the_report_of_an_interrupted_search_says_so():
    made = result(
        "reserve", MethodLimit("fixed", "partial", 1 << 40, None, 11, None), complete=False
    )
    text = text_of(made)
    assert "nothing was refused so far" in text
    assert "within the bounds" not in text
    assert "interrupted" in text


def test_the_report_calls_no_number_a_limit_where_commits_add_no_areas():
    cause = "its commits add no memory areas"
    found = MethodLimit("advise", "none", 117, None, 1, None, cause, 1 << 20)
    text = text_of(result("mappings", found))
    assert f"advise: no limit: {cause} (the process has 117)" in text
    assert "works" not in text


def test_an_attempt_that_died_is_named_in_place_of_a_number():
    error = "the process that tried it ended: it got SIGKILL"
    found = MethodLimit("fixed", "not found", None, None, 1, error)
    assert f"not found: {error}" in text_of(result("mappings", found, found=False))
