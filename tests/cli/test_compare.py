"""``vmtool compare``: the verdicts, where they go, and the exit code."""

from functools import partial
from pathlib import Path

import pytest
from printed import printed
from stored_runs import MACHINE, described, eventful, gaussian, method, run, several, write

from vmtool.compare.changes import compare
from vmtool.report.compare import to_text


def stored(folder, runs):
    """A folder with a file for each run of a set."""
    folder.mkdir()
    for i, file in enumerate(runs.files):
        write(folder / f"{i}.json", file.result)
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    """Five runs and five that are half as slow again."""
    return (
        stored(tmp_path / "a", several(5)),
        stored(tmp_path / "b", several(5, seed=2, factor=1.5)),
    )


def test_the_report(golden):
    result = compare(several(5), several(5, seed=2, factor=1.2, variation=0.06))
    golden("compare", partial(to_text, result))


def test_the_report_in_40_columns(golden):
    result = compare(several(5), several(1, seed=2))
    golden("compare-40", partial(to_text, result), width=40)


def test_a_slower_set_is_named_and_alone_is_not_a_failure(vmtool, folders):
    ran = vmtool("compare", *folders)
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("slower: the whole cycle of fixed +")
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert next(row for row in rows if row[:2] == ["commit", "median"])[-1] == "slower"


def test_a_single_run_a_side_proves_nothing(vmtool, folders):
    ran = vmtool("compare", *(f"{folder}/0.json" for folder in folders))
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("not proven: 1 run against 1; a verdict needs 4 runs per side")
    assert "slower" not in ran.stdout


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--fail-on", "cycle.median>+20%"), 3, "FAILED: --fail-on cycle.median>+20% (fixed +"),
        (("--fail-on", "cycle.median>+90%"), 0, "passed: --fail-on cycle.median>+90%"),
        (("--fail-on", "cycle.median>+50%"), 0, "not proven: --fail-on cycle.median>+50%"),
        (("--fail-on", "cycle.median>+50%", "--strict"), 3, "FAILED: --fail-on"),
        (("--fail-on", "verify.p99>+50%"), 3, "not measured"),
    ],
)
def test_a_condition_sets_the_exit_code(vmtool, folders, options, code, words):
    ran = vmtool("compare", *folders, *options)
    assert ran.code == code
    assert words in ran.stdout


def test_a_condition_needs_four_runs_a_side(vmtool, folders):
    ran = vmtool("compare", folders[0], f"{folders[1]}/1.json", "--fail-on", "cycle.median>+20%")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--fail-on needs 4 runs per side, and " in ran.stderr
    assert "1.json has 1" in ran.stderr
    ran = vmtool("compare", *folders, "--confidence", "99.9", "--fail-on", "cycle.median>+20%")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--fail-on needs 7 runs per side, and " in ran.stderr
    assert "vmtool stress --runs 7 " in ran.stderr


def test_json_is_one_document_of_its_schema(vmtool, folders):
    ran = vmtool("compare", *folders, "--json", "--fail-on", "commit.median>+5%")
    document = ran.document
    assert (ran.code, ran.stderr) == (3, "")
    assert (document["schema"], document["version"]) == ("vmtool.compare", 2)
    assert document["changes"][0]["direction"] == "slower"
    assert document["checks"][0]["outcome"] == "failed"
    assert document["passed"] is False
    assert document["before"]["path"] == folders[0]
    assert document["before"]["runs"] == 5
    described(document)


def test_unlike_machines_and_settings_are_warned_of_on_stderr(vmtool, tmp_path, folders):
    other = run(
        method(commit=gaussian(3, 100_000, 300)),
        machine=MACHINE | {"page_bytes": 16384},
        settings={"granule_bytes": 2 << 20, "inject": ("mmap:1=ENOMEM",)},
    )
    line = ("compare", folders[0], write(tmp_path / "c.json", other))
    ran = vmtool(*line)
    assert ran.code == 0
    assert "the machines differ: page size: 4 KiB and 16 KiB" in ran.stderr
    assert "granule: 64 KiB and 2 MiB" in ran.stderr
    assert "injected faults: none and mmap:1=ENOMEM" in ran.stderr
    assert "not compared: fixed: touch (before only)" in ran.stderr
    assert "machines differ" not in ran.stdout
    assert vmtool(*line, "--quiet").stderr == ""


def test_a_folder_of_unlike_results_is_warned_of_by_name(vmtool, folders):
    other = run(method(commit=[5] * 9), settings={"pattern": "random"})
    for i in (7, 8):
        write(Path(folders[1]) / f"{i}.json", other)
    ran = vmtool("compare", *folders)
    path = Path(folders[1])
    assert (
        f"warning: {path / '7.json'} and 1 more differ from {path / '0.json'} of the same side: "
        "pattern: tail and random" in ran.stderr
    )


def test_a_run_that_crashed_is_named_and_not_compared(vmtool, tmp_path, folders):
    crashed = write(tmp_path / "a" / "9.json", eventful())
    ran = vmtool("compare", *folders)
    assert ran.code == 0
    assert f"{crashed}: run 1 crashed after 1,000 cycles and is left out" in ran.stderr
    ran = vmtool("compare", crashed, folders[1])
    assert (ran.code, ran.stdout) == (2, "")
    assert "nothing to compare" in ran.stderr


def test_nothing_in_common_is_wrong_usage(vmtool, tmp_path):
    one = write(tmp_path / "a.json", run(method(commit=[1] * 9)))
    other = write(tmp_path / "b.json", run(method(touch=[1] * 9)))
    ran = vmtool("compare", one, other)
    assert (ran.code, ran.stdout) == (2, "")
    assert "no method and phase in common" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "commit.p99>5ms"], "not a change in percent"),
        (["--fail-on", "cycle.p99>+5%"], "a whole cycle has no p99"),
        (["--threshold", "-1"], "--threshold"),
        (["--threshold", ""], "'' is not a number; write it like 5"),
        (["--fail-on", "p.touch.median>+2%"], "'p' is not a method"),
        (["--threshold", "nan"], "--threshold"),
        (["--threshold", "\u0663"], "--threshold"),
        (["--threshold", "1_000"], "--threshold"),
        (["--confidence", "nan"], "--confidence"),
        (["--confidence", "100"], "--confidence"),
    ],
)
def test_wrong_usage_is_exit_2(vmtool, folders, arguments, words):
    ran = vmtool("compare", *folders, *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


def test_a_file_that_is_not_a_run_is_exit_2_and_named(vmtool, tmp_path, folders):
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "vmtool.grow"}', encoding="utf-8")
    ran = vmtool("compare", folders[0], str(bad))
    assert (ran.code, ran.stdout) == (2, "")
    assert f"vmtool: error: {bad}: schema: is a document 'vmtool.grow'" in ran.stderr


def test_a_file_of_another_kind_is_named(vmtool, tmp_path, folders):
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(20))
    ran = vmtool("compare", folders[0], str(tmp_path / "model.pt"))
    assert (ran.code, ran.stdout) == (2, "")
    assert "model.pt: is a ZIP archive (such as PyTorch's .pt files)" in ran.stderr


def test_a_folder_without_results_is_exit_2(vmtool, tmp_path):
    ran = vmtool("compare", str(tmp_path), str(tmp_path))
    assert ran.code == 2
    assert "is a folder without .json files" in ran.stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_powershell_writes_is_read(vmtool, folders, tmp_path, encoding):
    with open(f"{folders[0]}/0.json", encoding="utf-8") as file:
        text = file.read()
    (tmp_path / "shell.json").write_text(text, encoding=encoding)
    assert vmtool("compare", str(tmp_path / "shell.json"), folders[1]).code == 0


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_no_width_loses_a_digit(width):
    sides = several(5), several(5, seed=2, factor=20)
    lines = printed(partial(to_text, compare(*sides)), width)
    wide = printed(partial(to_text, compare(*sides)), 240)
    assert max(map(len, lines)) <= width
    flat = " ".join(lines).split()
    for word in " ".join(wide).split():
        assert word in flat or f"{word}:" in flat or word == "95", word


def test_html_is_written_beside_the_result(vmtool, tmp_path, folders):
    page = tmp_path / "page.html"
    ran = vmtool("compare", *folders, "--html", str(page))
    assert ran.code == 0
    assert "slower" in ran.stdout
    text = page.read_text(encoding="utf-8")
    assert "slower: the whole cycle of fixed +" in text
    assert "vmtool-compare.json" in text


def test_html_that_cannot_be_written_is_exit_2(vmtool, tmp_path, folders):
    ran = vmtool("compare", *folders, "--html", str(tmp_path / "none" / "page.html"))
    assert ran.code == 2
    assert "cannot write" in ran.stderr


def test_sides_that_are_the_same_are_named(vmtool, tmp_path, folders):
    again = write(tmp_path / "a.json", run(method(commit=[1] * 9)))
    copy = write(tmp_path / "b.json", run(method(commit=[1] * 9)))
    assert (
        f"warning: BEFORE and AFTER are the same: {again}" in vmtool("compare", again, again).stderr
    )
    assert "BEFORE and AFTER hold the same results" in vmtool("compare", again, copy).stderr
    assert "BEFORE and AFTER" not in vmtool("compare", *folders).stderr


def test_stdin_cannot_be_both_sides(vmtool):
    ran = vmtool("compare", "-", "-")
    assert (ran.code, ran.stdout) == (2, "")
    assert "BEFORE and AFTER cannot both be -" in ran.stderr
