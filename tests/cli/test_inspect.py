"""``vmtool inspect`` as a user runs it: public situations, reproduced, and what it answers."""

import json
import os
import signal
import subprocess
import sys
import time

import click
import pytest
from programs import MANY_AREAS

if sys.platform != "linux":
    pytest.skip("the situations are those of Linux", allow_module_level=True)

from pathlib import Path

from vmtool.cli.inspect import WatchedProgram
from vmtool.cli.interrupt import Interruption
from vmtool.cli.output import Output, replace_whole


@pytest.fixture
def process(child):
    """Return a function that starts Python code and returns its number when it is ready."""
    return lambda setup="", **options: child(f"{setup}\nhold()", **options).pid


def _findings(ran):
    return {finding["name"]: finding for finding in ran.document["findings"]}


def test_the_answer_comes_first_and_nothing_else_is_printed(vmtool, process):
    pid = process()

    ran = vmtool("inspect", str(pid))

    assert ran.code == 0
    first = ran.stdout.splitlines()[0]
    assert first.startswith("python")
    assert f"({pid}): no problem found" in first
    assert "resident" in ran.stdout
    assert ran.stderr == ""


def test_the_document_holds_what_the_text_shows(vmtool, process):
    pid = process()

    document = vmtool("inspect", str(pid), "--json").document

    assert document["schema"] == "vmtool.inspect"
    assert document["process"]["pid"] == pid
    assert document["ending"] == "complete"
    assert document["samples"][0]["resident_bytes"] > 0
    assert document["reservations"][0]["capacity_bytes"] > 0


def test_a_go_program_under_ulimit_v(vmtool, process):
    # golang/go#38010: RLIMIT_AS stops a program while RAM is free.
    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 2 << 30))

    pid = process("data = bytearray(920 << 20)", before=limit)

    ran = vmtool("inspect", str(pid))

    assert "of address space is in use (RLIMIT_AS)" in ran.stdout.splitlines()[0]
    remedy = f"`prlimit --pid {pid} --as={2 << 30}:` makes it the hard limit; beyond that, raise"
    assert remedy in " ".join(ran.stdout.split())


def test_locked_memory_near_its_limit(vmtool, process):
    # ggml-org/llama.cpp#4072: mlock fails at RLIMIT_MEMLOCK.
    # The limit does not hold for CAP_IPC_LOCK.
    setup = (
        "import ctypes\nos.getuid() or os.setuid(65534)\nlibc = ctypes.CDLL(None)\ndata = bytearray(1 << 20)\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(data))\n"
        "assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(1000000)) == 0"
    )

    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))

    ran = vmtool("inspect", str(process(setup, before=limit)))

    first = ran.stdout.splitlines()[0]
    assert "KiB of 1 MiB of locked memory is in use (RLIMIT_MEMLOCK)" in first
    assert "raise the hard limit of 1 MiB" in " ".join(ran.stdout.split())


def test_memory_areas_nearly_full(vmtool, child):
    # chaosblade-io/chaosblade-box#102: a JVM at 65,479 of 65,530 areas.
    from pathlib import Path

    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 200_000:
        pytest.skip(f"vm.max_map_count is {most}: filling it takes too long here")

    ran = vmtool("inspect", str(child(MANY_AREAS.replace("COUNT", str(most * 95 // 100))).pid))

    assert "memory areas are in use (vm.max_map_count)" in " ".join(ran.stdout.split())
    assert "sysctl -w vm.max_map_count=" in ran.stdout


def test_descriptors_nearly_full(vmtool, process):
    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    setup = "files = [open('/dev/null') for _ in range(58)]"

    ran = vmtool("inspect", str(process(setup, before=limit)), "--json")

    assert _findings(ran)["descriptor-limit"]["rating"] == "problem"


def test_a_stopped_process_is_reported_as_stopped(vmtool, process):
    pid = process()
    os.kill(pid, signal.SIGSTOP)

    ran = vmtool("inspect", str(pid))

    assert "the process is stopped" in ran.stdout


def test_a_watch_has_trends_and_judges_conditions(vmtool, process):
    pid = process(
        "import threading, time\nkept = []\ndef leak():\n    while True:\n"
        "        kept.append(b'x' * (1 << 18)); time.sleep(0.01)\n"
        "threading.Thread(target=leak, daemon=True).start()"
    )
    watch = ("inspect", str(pid), "--duration", "1s", "--interval", "50ms", "-q")

    ran = vmtool(*watch, "--assert", "resident.slope<1KiB/h", "--json")

    assert ran.code == 3
    assert "resident.slope<1KiB/h: does not hold" in ran.stderr
    grows = {trend["counter"] for trend in ran.document["trends"] if trend["grows"]}
    assert "resident_bytes" in grows
    assert ran.document["checks"][0]["outcome"] == "failed"


def test_what_was_not_measured_fails_a_condition(vmtool, process):
    ran = vmtool("inspect", str(process()), "--assert", "resident.slope<1MiB/min")

    assert ran.code == 3
    assert "not done: 6 samples are needed, and there are 1; watch longer" in ran.stderr


def test_csv_metrics_and_page_are_written(vmtool, process, tmp_path):
    names = {kind: str(tmp_path / f"out.{kind}") for kind in ("csv", "metrics", "html")}
    options = [text for kind, name in names.items() for text in (f"--{kind}", name)]
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / "out.metrics.new").symlink_to(other)

    ran = vmtool("inspect", str(process()), "--duration", "300ms", "--interval", "100ms", *options)

    assert ran.code == 0
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert rows[0].startswith("at_ns,address_space_bytes,")
    assert len(rows) >= 3
    metrics = (tmp_path / "out.metrics").read_text()
    assert metrics.endswith("# EOF\n")
    assert "vmtool_process_resident_bytes{" in metrics
    assert other.read_text() == "theirs"
    assert (tmp_path / "out.metrics.new").is_symlink()
    assert len(list(tmp_path.iterdir())) == 5
    page = (tmp_path / "out.html").read_text()
    assert "no problem found" in page
    assert "<svg" in page


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [None, 0o604])
def test_a_file_that_is_replaced_can_be_read_by_who_could_before(tmp_path, mode):
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    if mode is not None:
        file.write_text("old")
        file.chmod(mode)

    for text in ("one", "two"):
        Output().save(str(link), lambda text=text: text, whole=True)

    assert link.is_symlink()
    assert file.read_text() == "two"
    assert file.stat().st_mode & 0o777 == (mode or 0o640)
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("old")

    def full(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        replace_whole(str(file), "new")

    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    assert not replace_whole("/dev/null", "new")


@pytest.mark.parametrize("whole", [False, True])
def test_a_folder_that_was_removed_meanwhile_is_to_be_made_again(tmp_path, capsys, whole):
    with click.Context(click.Command("inspect")):
        Output().save(str(tmp_path / "gone" / "file"), str, whole=whole)

    assert "hint: its folder no longer exists: create it, and run again" in capsys.readouterr().err


def _inspect(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "vmtool", "inspect", *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        **options,
    )


def test_a_command_keeps_its_output_and_its_exit_code(tmp_path):
    code = "import sys, time; print('out'); time.sleep(0.5); sys.exit(7)"

    ran = _inspect("-o", str(tmp_path / "r.json"), "--json", "--", sys.executable, "-c", code)

    assert (ran.returncode, ran.stdout) == (7, "out\n")
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["process"]["exit_code"] == 7
    assert document["ending"] == "process ended"
    assert document["conditions"]["host"]


def test_what_was_watched_is_written_before_the_command_ends_and_no_signal_loses_it(tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "metrics", "html", "json")}
    options = [text for kind in ("csv", "metrics", "html") for text in (f"--{kind}", files[kind])]
    # It ends with 7 once all files are there, and interrupts vmtool before.
    last = files["json"]
    code = (
        f"for i in $(seq 500); do if [ -s {last} ]; then sleep 0.02; kill -TERM $PPID; "
        f"[ -s {files['csv']} ] && [ -s {files['metrics']} ] && [ -s {files['html']} ]; "
        "exit $((7 + $?)); fi; sleep 0.02; done"
    )

    ran = _inspect("--duration", "50ms", *options, "--json", "-o", last, "--", "sh", "-c", code)

    assert ran.returncode == 7
    document = json.loads(last.read_text())
    assert (document["ending"], document["process"]["exit_code"]) == ("complete", 7)


@pytest.mark.parametrize(("ends", "kill_ns"), [(143, 10 * 10**9), (137, 10**8)])
def test_a_command_that_is_no_longer_watched_is_ended_as_during_the_watch(ends, kill_ns):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN if ends == 137 else signal.SIG_DFL)
    try:  # what it ignores, a command ignores as well
        child = WatchedProgram(
            ("sleep", "60"), Interruption(requested=True), ask_ns=0, kill_ns=kill_ns
        )
    finally:
        signal.signal(signal.SIGTERM, before)

    assert child.wait() == ends


@pytest.mark.parametrize("command", ["true", "exec sleep 0.05"])
def test_a_command_of_a_moment_leaves_every_file_and_fails_a_condition(vmtool, tmp_path, command):
    # Whether a sample comes before its end is up to the scheduler; the files and the code are not.
    files = {kind: tmp_path / f"out.{kind}" for kind in ("html", "csv", "metrics")}
    options = [text for kind, file in files.items() for text in (f"--{kind}", str(file))]
    report = tmp_path / "report.json"
    condition = ("--assert", "resident.slope<1GiB/s", "--json", "-o", str(report))

    ran = vmtool("inspect", *condition, *options, "--", "sh", "-c", command)

    assert ran.code == 3
    assert "vmtool: error: resident.slope<1GiB/s: not" in ran.stderr
    document = json.loads(report.read_text())
    assert document["ending"] == "process ended"
    assert document["process"]["exit_code"] == 0
    assert document["checks"][0]["outcome"] == "not done"
    assert all(file.exists() for file in files.values())


def test_a_command_that_is_killed_ends_with_128_and_the_signal():
    code = "import os, time; time.sleep(0.3); os.kill(os.getpid(), 9)"

    ran = _inspect("--", sys.executable, "-c", code)

    assert ran.returncode == 137
    assert "the process ended" in ran.stderr
    assert ran.stdout == ""


def _content(path):
    """Return what is in a file; nothing before its first line, as it is tried and removed first."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def test_ctrl_c_ends_the_command_first(tmp_path):
    sampled = tmp_path / "metrics"
    command = ("inspect", "--metrics", str(sampled), "--", "sleep", "60")
    child = subprocess.Popen(
        [sys.executable, "-m", "vmtool", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not _content(sampled):
        assert child.poll() is None
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=30)

    assert child.returncode == 130
    assert b"sleep" in errors


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("/nonexistent/program", 127, "cannot start '/nonexistent/program': no such program"),
        ("", 127, "cannot start '': no such program"),
        ("/proc", 126, "cannot start '/proc': it is a directory"),
        ("/proc/version", 126, "cannot start '/proc/version': Permission denied"),
    ],
)
def test_what_cannot_be_started_ends_as_in_a_shell(vmtool, program, code, words):
    ran = vmtool("inspect", "--", program)

    assert ran.code == code
    assert words in ran.stderr


def test_a_name_in_place_of_a_number_names_the_option(vmtool):
    ran = vmtool("inspect", "llama-server")

    assert ran.code == 2
    assert "'llama-server' is not a PID; select by name with --name" in ran.stderr
    ran = vmtool("inspect", "9" * 20)
    assert (ran.code, f"no process has the PID {'9' * 20}" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one process"),
        (("1", "--name", "x"), "give only one of"),
        (("1", "--", "true"), "give only one of"),
        (("--name", "no-such-program-here"), "no process has that name"),
        (("--json", "--", "true"), "--json needs -o FILE"),
        (("1", "--assert", "nonsense"), "not a condition"),
        (("1", "--assert", "resident.slope<nan/s"), "'nan' is not a size"),
        (("1", "--assert", "residnt<1GiB"), "did you mean resident?"),
    ],
)
def test_wrong_usage_is_one_error_with_a_way_out(arguments, words):
    ran = _inspect(*arguments)

    assert ran.returncode == 2
    assert words in ran.stderr
    assert "hint:" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_word_in_the_arguments_of_the_starting_program_is_not_a_name():
    # As in `sudo timeout 60 vmtool inspect --name NAME`.
    inner = '( "$0" -m vmtool inspect --name "$1"; exit $? ); exit $?'

    ran = subprocess.run(
        ["sh", "-c", inner, sys.executable, "no-such-engine"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert "--name no-such-engine: no process has that name" in ran.stderr


def test_a_command_is_not_mistaken_for_the_process_of_its_number_in_another_namespace():
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("unshare(1) is missing, or may make no PID namespace")

    ran = subprocess.run(
        [*unshare, sys.executable, "-m", "vmtool", "inspect", "--", "echo", "started"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "/proc belongs to a different PID namespace from vmtool's" in ran.stderr


_WITH_A_LIMIT_OF_TASKS = """
import os, resource, subprocess, sys
def limit():
    resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
    os.setuid(65533)
child = subprocess.Popen(["sleep", "60"], preexec_fn=limit)
ran = subprocess.run([sys.executable, "-m", "vmtool", "inspect", str(child.pid)])
child.kill()
sys.exit(ran.returncode)
"""


@pytest.mark.parametrize("namespace", [("unshare", "--pid", "--fork", "--mount-proc"), ()])
def test_tasks_outside_a_container_count_and_are_said_to(namespace):
    try:
        subprocess.run([*namespace, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("unshare(1) is missing, or may make no PID namespace")
    if os.geteuid() or Path("/proc/self/ns/pid").stat().st_ino != 0xEFFFFFFC:
        pytest.skip("needs root outside a container")

    ran = subprocess.run(
        [*namespace, sys.executable, "-c", _WITH_A_LIMIT_OF_TASKS],
        check=False,
        capture_output=True,
        text=True,
    )

    assert "1 of 50 of its user (RLIMIT_NPROC)" in ran.stdout
    assert ("more may exist outside this PID namespace" in ran.stdout) == bool(namespace)


def test_a_process_that_is_not_there(vmtool):
    ran = vmtool("inspect", "4194301")

    assert ran.code == 1
    assert "no such process" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_watch_with_its_document_and_fresh_metrics(process, tmp_path, number):
    metrics = tmp_path / "metrics"
    watch = ("--watch", "--interval", "100ms", "--metrics", str(metrics), "--json")
    child = subprocess.Popen(
        [sys.executable, "-m", "vmtool", "inspect", str(process()), *watch],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    read = set()
    for _ in range(600):
        if text := _content(metrics):
            assert text.endswith("# EOF\n")  # never a half
            read.add(metrics.stat().st_ino)
        if len(read) > 1:
            break
        time.sleep(0.05)
    child.send_signal(number)
    out, _ = child.communicate(timeout=60)

    assert child.returncode == 130
    assert json.loads(out)["ending"] == "interrupted"
    assert len(read) > 1


def test_threads_near_the_limit_of_a_real_control_group(vmtool, process):
    from pathlib import Path

    group = Path("/sys/fs/cgroup/pids", f"vmtool-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    setup = (
        f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        "import threading, time\n"
        "for _ in range(7): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    try:
        (group / "pids.max").write_text("8")
        pid = process(setup)
        ran = vmtool("inspect", str(pid), "--json")
        os.kill(pid, signal.SIGKILL)
        for _ in range(100):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.05)
    finally:
        group.rmdir()

    found = _findings(ran)["task-limit"]
    assert (found["values"]["used"], found["values"]["soft"]) == (8, 8)
