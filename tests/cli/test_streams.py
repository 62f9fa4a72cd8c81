"""Streams that are closed, full, or no longer read: the exit code is still right."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vmtool.cli.streams import fitting, reader_is_gone

PROGRAM = [sys.executable, "-m", "vmtool"]
CSV = "kv-estimate gpt2 --budget 1GiB --sweep context=1..8 --csv -"
COMMANDS = ["granularity", "granularity --json", "reserve 1GiB", "grow --to 1MiB", "doctor", CSV]
HELP = ["--help", "--version", "grow -h"]
REFUSED = "grow --to 100TiB"  # exit code 5 on every machine

TRACE = "synthetic:requests=9,output=64 --model qwen3-0.6b --budget 1GiB"
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


def shell(command, redirections):
    """Run ``vmtool COMMAND REDIRECTIONS`` in a shell; the code is that of vmtool."""
    script = f'"$@" {redirections}'
    ran = subprocess.run(
        ["bash", "-c", script, "bash", *PROGRAM, *command.split()],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    return ran


@pytest.mark.parametrize("command", [*COMMANDS, *HELP])
def test_a_result_without_a_stdout_is_an_error(command):
    ran = shell(command, ">&-")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "cannot write stdout: it is closed" in ran.stderr


def test_a_closed_stdout_does_not_matter_to_a_file(tmp_path):
    path = tmp_path / "result.json"
    assert shell(f"reserve 1MiB --json -o {path}", ">&-").returncode == 0
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == "vmtool.reserve"


@pytest.mark.parametrize("command", [*COMMANDS, *HELP])
@FULL
def test_a_full_disk_is_an_error(command, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = shell(command, ">/dev/full")
    assert ran.returncode == 1
    assert "cannot write stdout: No space left on device" in ran.stderr


def test_a_closed_stdout_is_reported_before_the_run():
    ran = shell("stress --duration 1h", ">&-")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "cannot write stdout: it is closed" in ran.stderr


@FULL
def test_each_file_that_cannot_be_written_is_named_and_the_verdict_as_well():
    files = "-o /dev/full --html /dev/full --csv /dev/full"
    ran = shell(f"stress --cycles 100 --seed 1 --assert cycles_per_s<1 --json {files}", "")
    assert ran.returncode == 1  # though a check has failed, which alone would be 3
    assert ran.stderr.count("cannot write /dev/full: No space left on device") == 3
    assert "assert.cycles_per_s<1" in ran.stderr


@pytest.mark.parametrize("command", ["stress --duration 1h", f"kv-replay {TRACE}"])
def test_two_results_in_one_file_are_refused_before_anything_starts(command, tmp_path):
    (tmp_path / "link").symlink_to("same")
    ran = shell(f"{command} -o {tmp_path}/same --html {tmp_path}/link", "")
    assert ran.returncode == 2
    assert "would write the same file" in ran.stderr
    assert not (tmp_path / "same").exists()


def test_several_results_may_go_to_one_device():
    assert shell(f"kv-replay {TRACE} -o /dev/null --html /dev/null", "").returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        "compare {0} {0} --html {0}",
        "compare {0} {0} -o {0}",
        "kv-estimate {0} -o {0}",
        "fleet {0} -o {0}",
        "kv-replay {0} --model qwen3-0.6b --budget 1GiB --csv {0}",
    ],
)
def test_no_result_is_written_over_what_is_read(command, tmp_path):
    read = tmp_path / "read.json"
    read.write_text("{}", encoding="utf-8")
    ran = shell(command.format(read), "")
    assert ran.returncode == 2
    assert f"would overwrite {read}, which is an input" in ran.stderr
    assert read.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize(
    ("option", "command"),
    [
        *(("-o", command) for command in ("grow --to 1MiB", "doctor", "reserve 1MiB", "schema")),
        *((option, "stress --duration 1h") for option in ("-o", "--html", "--csv")),
        *((option, f"kv-replay {TRACE}") for option in ("-o", "--html", "--csv")),
        ("--csv", "kv-estimate gpt2 --budget 1GiB --sweep context=1..8"),
        ("-o", "kv-estimate gpt2"),
        ("-o", "granularity"),
    ],
)
def test_a_file_in_no_folder_is_reported_before_anything_starts(option, command, tmp_path):
    ran = shell(f"{command} {option} {tmp_path}/none/x", "")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"vmtool: error: cannot write '{tmp_path}/none/x': No such file or directory\n"
        "  hint: create its folder first\n"
    )


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="where not even root writes: Linux")
def test_a_read_only_folder_is_reported_before_anything_starts():
    ran = shell("stress --duration 1h -o /sys/kernel/x", "")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "cannot write '/sys/kernel/x': " in ran.stderr


def test_a_run_that_is_refused_leaves_no_files(tmp_path):
    options = ["--json", "-o", "a", "--html", "b", "--csv", "c"]
    ran = subprocess.run(
        [*PROGRAM, "stress", "--capacity", "1EiB", "--budget", "1EiB", *options],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
    )
    assert ran.returncode in {2, 5}, ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_with_a_name_gets_the_whole_result(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        try:
            assert shell(f"reserve 1MiB --json -o {pipe}", "").returncode == 0
            assert json.loads(reader.communicate(timeout=60)[0])["schema"] == "vmtool.reserve"
        finally:
            reader.kill()


def unread(command):
    """Run ``vmtool COMMAND`` into a pipe that nobody reads; return the code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*PROGRAM, *command.split()],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("command", [*COMMANDS, "--help", "--version", "grow --help"])
def test_a_reader_that_has_enough_is_no_error(command):
    assert unread(command) == (0, b"")


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EINVAL, errno.ENOSPC])
def test_windows_says_einval_where_others_say_epipe(code):
    assert reader_is_gone(OSError(code, "x"), "win32") == (code != errno.ENOSPC)
    assert reader_is_gone(OSError(code, "x"), "linux") == (code == errno.EPIPE)


def test_files_and_verdict_come_though_the_reader_has_enough(tmp_path):
    page, table = tmp_path / "run.html", tmp_path / "run.csv"
    code, told = unread(f"stress --cycles 100 --assert cycles_per_s<1 --html {page} --csv {table}")
    assert code == 3
    assert b"assert.cycles_per_s<1 failed" in told
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert table.read_text(encoding="utf-8").startswith("record,")


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", "2> >(true)"])
@pytest.mark.parametrize(("command", "code"), [(REFUSED, 5), ("reserve nonsense", 2)])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(redirections, command, code):
    if "full" in redirections and not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    assert shell(command, redirections).returncode == code


def test_a_name_that_is_no_text_is_written_as_text_in_json(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    try:
        Path(os.fsdecode(path)).touch()
    except OSError as error:
        pytest.skip(f"this file system wants text: {error}")
    ran = subprocess.run(
        [*PROGRAM, "reserve", "1MiB", "--json", "-o", path],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    document = json.loads(Path(os.fsdecode(path)).read_text(encoding="utf-8"))
    assert document["command"][-1] == f"{tmp_path}/\\udcff.json"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("stress", "--csv"), ("stress", "--html"), ("compare", "--html")),
        *(("kv-replay", "--csv"), ("kv-replay", "--html")),
    ],
)
def test_a_file_beside_the_result_is_not_stdout(vmtool, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    ran = vmtool(command, option, "-")
    assert (ran.code, ran.stdout) == (2, "")
    assert "'-' is stdout, where the result goes; give a file" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_progress_that_does_not_fit_loses_whole_parts():
    assert fitting("run 1 of 5, 2,172 cycles, 3.45 s") == "run 1 of 5, 2,172 cycles, 3.45 s"
    assert fitting("run 1 of 5, 1,172 of 1,800 cycles, 3.45 s") == (
        "run 1 of 5, 1,172 of 1,800 cycles"
    )
