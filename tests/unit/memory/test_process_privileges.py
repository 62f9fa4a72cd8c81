"""What a process of a user namespace may do."""

import pytest

from vmtool.memory.process_privileges import in_initial_user_namespace


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
