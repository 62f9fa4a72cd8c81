"""``vmtool compare``: the verdicts, where they go, and the exit code."""

import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console
from stored_runs import MACHINE, gaussian, method, run, write

from vmtool.cli.app import run as run_vmtool
from vmtool.compare.runs import compare
from vmtool.report.compare import ComparedRuns, RunLabel, print_comparison


def invoke(capsys, *arguments):
    code = run_vmtool(["compare", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.fixture
def files(tmp_path):
    """A run and one whose commits are half as slow again."""
    before = method(commit=gaussian(1, 100_000, 3000), release=gaussian(2, 50_000, 3000))
    after = method(commit=gaussian(3, 150_000, 3000), release=gaussian(4, 50_000, 3000))
    return write(tmp_path / "a.json", run(before)), write(tmp_path / "b.json", run(after))


def test_a_slower_phase_is_told_and_alone_is_no_failure(capsys, files):
    code, out, err = invoke(capsys, *files)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert next(line for line in lines if line[:2] == ["commit", "median"])[-1] == "slower"
    assert next(line for line in lines if line[:2] == ["release", "median"])[-1] == "unchanged"
    assert err == ""


def test_a_gate_that_closes_is_exit_3_and_says_why(capsys, files):
    code, out, _ = invoke(
        capsys, *files, "--fail-on", "commit.p99>+20%", "--fail-on", "release.p50>+20%"
    )
    assert code == 3
    assert "FAILED  fail-on commit.p99>+20% (fixed: " in out
    assert "passed  fail-on release.p50>+20%" in out


def test_a_gate_that_stays_open_is_exit_0(capsys, files):
    assert invoke(capsys, *files, "--fail-on", "commit.median>+60%")[0] == 0


def test_json_is_one_document_of_its_schema(capsys, files):
    code, out, err = invoke(capsys, *files, "--json", "--fail-on", "commit.median>+5%")
    document = json.loads(out)
    assert code == 3
    assert err == ""
    assert (document["schema"], document["version"]) == ("vmtool.compare", 1)
    assert document["changes"][0]["direction"] == "slower"
    assert document["gates"][0]["failed"] is True
    assert document["before"]["path"] == files[0]


def test_unlike_machines_and_settings_are_warned_of_on_stderr(capsys, tmp_path, files):
    other = run(
        method(commit=gaussian(3, 100_000, 3000)),
        machine=MACHINE | {"page_bytes": 16384},
        settings={"granule_bytes": 2 << 20},
    )
    code, out, err = invoke(capsys, files[0], write(tmp_path / "c.json", other))
    assert code == 0
    assert "the machines differ: page size in bytes: 4096 and 16384" in err
    assert "the settings differ: granule_bytes: 65536 and 2097152" in err
    assert "not compared: fixed: release (first run only)" in err
    assert "differ" not in out
    assert invoke(capsys, files[0], str(tmp_path / "c.json"), "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "commit.p99>5ms"], "not a change in percent"),
        (["--threshold", "-1"], "--threshold"),
        (["--threshold", "nan"], "--threshold"),
        (["--confidence", "nan"], "--confidence"),
        (["--confidence", "100"], "--confidence"),
    ],
)
def test_wrong_usage_is_exit_2(capsys, files, arguments, words):
    code, out, err = invoke(capsys, *files, *arguments)
    assert code == 2
    assert words in err
    assert out == ""


def test_a_file_that_is_no_run_is_exit_2_and_named(capsys, tmp_path, files):
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "vmtool.grow"}', encoding="utf-8")
    code, out, err = invoke(capsys, files[0], str(bad))
    assert code == 2
    assert f"vmtool: error: {bad}: schema: is a document 'vmtool.grow'" in err
    assert "Traceback" not in err
    assert out == ""


def render(width, samples=3000):
    before = run(method(commit=gaussian(1, 98_765_432, samples), release=gaussian(2, 999, samples)))
    after = run(
        method(
            "protect", commit=gaussian(3, 1_987_654_321, samples), release=gaussian(2, 999, samples)
        )
    )
    labels = ComparedRuns(RunLabel("a.json", (), "1"), RunLabel("b.json", (), "1"))
    file = io.StringIO()
    print_comparison(labels, compare(before, after), Console(file=file, width=width, markup=False))
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_no_width_loses_a_digit(width):
    text = render(width)
    flat = " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for figure in ("98.8 ms", "1.98 s", "+1,907.2 %", "slower", "unchanged", "fixed -> protect"):
        assert figure in flat
    assert len(set(text.split("\n"))) > 5


def test_an_uncertain_verdict_carries_its_explanation():
    text = render(80, samples=8)
    assert "unchanged?" in text or "slower?" in text
    assert "a change may be hidden" in " ".join(text.split())
    assert "a change may be hidden" not in render(80)


def test_every_percentile_of_the_document_is_in_the_text():
    shown = compare(
        run(method(commit=gaussian(1, 9e5, 3000))), run(method(commit=gaussian(1, 9e5, 3000)))
    )
    uncertain = [replace(change, certain=change.statistic != "p90") for change in shown.changes]
    file = io.StringIO()
    labels = ComparedRuns(RunLabel("a.json", (), "1"), RunLabel("b.json", (), "1"))
    told = replace(shown, changes=tuple(uncertain))
    print_comparison(labels, told, Console(file=file, width=80, markup=False))
    lines = file.getvalue().splitlines()
    rows = {line.split()[1]: line.split()[-1] for line in lines if line.startswith("commit ")}
    assert rows.keys() == {change.statistic for change in shown.changes}
    assert [name for name, verdict in rows.items() if verdict.endswith("?")] == ["p90"]
    assert "a change may be hidden" in file.getvalue()


def test_what_is_left_out_is_named():
    few = method(commit=gaussian(1, 9e5, 3000), release=gaussian(2, 9e5, 100))
    found = compare(run(few), run(few))
    file = io.StringIO()
    labels = ComparedRuns(RunLabel("a.json", (), "1"), RunLabel("b.json", (), "1"))
    print_comparison(labels, found, Console(file=file, width=240, markup=False))
    missing = file.getvalue().partition("to bound it: ")[2].strip()
    assert missing.startswith("p99 of release; p99.9 of ")
    assert "release p99 " not in file.getvalue()


def test_help_has_examples():
    from vmtool.cli.compare import command

    result = CliRunner().invoke(command, ["--help"])
    assert "vmtool compare before.json after.json --fail-on" in result.output


def test_html_is_written_beside_the_result(capsys, tmp_path, files):
    page = tmp_path / "page.html"
    code, out, _ = invoke(capsys, *files, "--html", str(page))
    assert code == 0
    assert "slower" in out
    assert "commit: slower (+" in page.read_text(encoding="utf-8")


def test_html_that_cannot_be_written_is_exit_2(capsys, tmp_path, files):
    code, _, err = invoke(capsys, *files, "--html", str(tmp_path / "none" / "page.html"))
    assert code == 2
    assert "cannot write" in err
