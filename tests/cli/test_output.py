"""A file that cannot be written is wrong usage before any work, and trying leaves no trace."""

from pathlib import Path

import pytest

from vmtool.cli.output import Output, claim
from vmtool.errors import UsageError, VmtoolError

NO_FILES = ["none/a.html", ".", "a\0b", "x" * 300, "file/a.html"]


@pytest.mark.parametrize("name", NO_FILES)
def test_a_name_that_no_file_can_have_is_wrong_usage(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write") as caught:
        claim(f"{tmp_path}/{name}")
    assert caught.value.hint
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="where not even root writes: Linux")
def test_a_file_that_the_platform_refuses_is_a_failed_call():
    with pytest.raises(VmtoolError, match="cannot write") as caught:
        claim("/sys/kernel/vmtool.html")
    assert caught.value.exit_code == 1


def test_claiming_a_file_that_is_not_there_leaves_none(tmp_path):
    claim(str(tmp_path / "a.html"))
    assert list(tmp_path.iterdir()) == []


def test_claiming_a_link_to_a_file_that_is_not_there_leaves_the_link(tmp_path):
    link = tmp_path / "link"
    try:
        link.symlink_to("target")
    except OSError as error:
        pytest.skip(f"links cannot be made here: {error}")
    claim(str(link))
    assert list(tmp_path.iterdir()) == [link]


def test_a_loop_of_links_is_named(tmp_path):
    link = tmp_path / "link"
    try:
        link.symlink_to(link)
    except OSError as error:
        pytest.skip(f"links cannot be made here: {error}")
    with pytest.raises(UsageError, match="cannot write"):
        claim(str(link))


def test_half_a_character_is_saved_escaped(tmp_path):
    path = tmp_path / "a.html"
    Output().save(str(path), lambda: "a\udcff")
    assert path.read_bytes() == b"a\\udcff"


def test_claiming_a_file_keeps_what_is_in_it(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("old", encoding="utf-8")
    claim(str(path))
    assert path.read_text(encoding="utf-8") == "old"
