"""A remedy for a limit fits the place where it was set, and root of a rootless container is not exempt."""

import subprocess
import sys

import pytest

from vmtool.memory.rlimits_and_privileges import (
    ResourceLimit,
    how_to_raise,
    in_initial_user_namespace,
    read_resource_limit,
)
from vmtool.units import GIB


@pytest.mark.parametrize(
    ("name", "limit", "privileged", "remedy"),
    [
        ("RLIMIT_AS", ResourceLimit(GIB, None), False, "ulimit -v unlimited"),
        ("RLIMIT_AS", ResourceLimit(GIB, GIB), True, "ulimit -v unlimited"),
        (
            "RLIMIT_AS",
            ResourceLimit(GIB, GIB),
            False,
            "raise the hard limit of 1 GiB: `as` in /etc/security/limits.conf, LimitAS= of the unit",
        ),
        (
            "RLIMIT_DATA",
            ResourceLimit(GIB, 2 * GIB),
            False,
            (
                "ulimit -Sd 2097152 (the hard limit); beyond it raise the hard limit of 2 GiB: `data` in "
                "/etc/security/limits.conf, LimitDATA= of the unit, docker run --ulimit data=..."
            ),
        ),
        ("RLIMIT_NOFILE", ResourceLimit(8, None), False, "ulimit -n 1048576"),
    ],
)
def test_the_remedy_fits_the_limit(name, limit, privileged, remedy):
    assert how_to_raise(name, limit=limit, privileged=privileged) == remedy


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [
        (
            ResourceLimit(GIB, None),
            "`prlimit --pid 42 --as=unlimited`; before a start `ulimit -v unlimited`",
        ),
        (
            ResourceLimit(GIB, 2 * GIB),
            "`prlimit --pid 42 --as=2147483648:` makes it the hard limit; beyond that, raise the hard limit of 2 GiB: ",
        ),
        (
            ResourceLimit(GIB, GIB),
            (
                "raise the hard limit of 1 GiB: as root `prlimit --pid 42 --as=unlimited`, for the next "
                "start `as` in /etc/security/limits.conf, LimitAS= of the unit"
            ),
        ),
    ],
)
def test_a_process_that_runs_is_named_in_its_remedy(limit, remedy):
    assert how_to_raise("RLIMIT_AS", limit=limit, pid=42).startswith(remedy)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_the_remedy_for_a_soft_limit_works_in_a_shell():
    """Run what is advised below a soft limit, in a shell that has it."""
    limit = read_resource_limit("RLIMIT_DATA")
    if limit.hard is not None:
        pytest.skip("this process has a hard limit of data already")
    remedy = how_to_raise("RLIMIT_DATA", limit=ResourceLimit(GIB, None), privileged=False)
    ran = subprocess.run(
        ["bash", "-c", f"ulimit -Sd 1048576 && {remedy} && ulimit -Sd"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "unlimited\n"


def test_a_limit_that_the_platform_lacks_is_unknown():
    assert read_resource_limit("RLIMIT_NO_SUCH_THING") is None


@pytest.mark.parametrize(
    ("text", "initial"),
    [
        ("         0          0 4294967295\n", True),
        ("         0       1000          1\n         1     100000      65536\n", False),
        (None, True),
    ],
)
def test_root_of_a_rootless_container_is_not_exempt_from_limits(tmp_path, text, initial):
    path = tmp_path / "uid_map"
    if text is not None:
        path.write_text(text, encoding="ascii")
    assert in_initial_user_namespace(str(path)) is initial
