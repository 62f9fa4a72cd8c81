"""The script for the first run on a GPU: from start to end on the stand-in, without a network."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def script(pytestconfig):
    return pytestconfig.rootpath / "scripts" / "first_gpu_run.py"


@pytest.fixture
def run(script, fakecuda_lib):
    def run_script(*arguments):
        return subprocess.run(
            [sys.executable, str(script), "--here", "--stand-in", "--quick", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )

    return run_script


def test_every_question_is_answered_in_one_line(run, load):
    questions = load("scripts", "first_gpu_run").QUESTIONS
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = done.stdout.splitlines()
    assert "nothing here says anything about hardware" in head
    assert [line.partition(":")[0] for line in lines] == list(questions)
    answers = dict(line.split(": ", 1) for line in lines)
    assert answers["multiples"] == "6 MiB: accepted; 20 MiB: accepted"
    assert "outlives_exporter=True" in answers["sharing"]
    assert answers["stress"].startswith("exit 0")
    assert answers["inject"].startswith("exit 1")


def test_a_question_that_ends_the_process_costs_one_line(run, monkeypatch):
    monkeypatch.setenv("FAKECUDA_FAIL", "none")  # the script starts from its own settings
    done = run("--device", "7", "bad-copy", "peers")
    assert done.returncode == 1
    first, second = done.stdout.splitlines()[1:]
    assert first.startswith("bad-copy: not answered: ")
    assert "no CUDA device 7" in first
    assert second.startswith("peers: PeerTrial")


def test_the_allocators_are_measured_in_what_is_free(load, fakecuda):
    fakecuda.reset(memory="32MiB")
    module = load("scripts", "first_gpu_run")
    rig = module.Rig(0, quick=False)
    assert "faster from" in module.QUESTIONS["allocators"](rig)
    rig.call("cuCtxPopCurrent")
    rig.context.close()


@pytest.mark.parametrize(
    ("code", "output", "answer"),
    [
        (0, "....s\n4 passed, 1 skipped in 2.1s\n", "exit 0: 4 passed, 1 skipped in 2.1s"),
        (1, "F.\nFAILED x\n1 failed, 1 passed in 1s\n", "exit 1: 1 failed, 1 passed in 1s"),
        (0, "sss\n3 skipped in 1s\n", "not answered: no test ran: 3 skipped in 1s"),
        (5, "no tests ran in 1s\n", "exit 5: no tests ran in 1s"),
        (4, "", "exit 4: "),
    ],
)
def test_the_counts_of_pytest_are_the_answer(load, code, output, answer):
    assert load("scripts", "first_gpu_run").counted(code, output) == answer


def test_an_unknown_question_is_wrong_usage(run):
    done = run("speed-of-light")
    assert done.returncode == 2
    assert "bad-copy" in done.stderr


def test_the_page_has_a_row_for_each_question_and_no_other(load, pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "platform-facts.md").read_text(encoding="utf-8")
    table = page.partition("### Open questions")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [word for row in rows for word in row.split("`")[1::2]]
    assert named == list(load("scripts", "first_gpu_run").QUESTIONS)


def test_packages_come_from_a_folder_and_from_nowhere_else(load, monkeypatch, tmp_path):
    module = load("scripts", "first_gpu_run")
    started = []
    groups = []
    environment = load("scripts", "_environment")
    monkeypatch.setattr(environment, "ensure", lambda *of: groups.extend(of) or sys.executable)
    monkeypatch.setattr(module.subprocess, "call", lambda line: started.append(line) or 0)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")
    assert module.main(["--packages", str(tmp_path), "facts"]) == 0
    assert (os.environ["PIP_NO_INDEX"], os.environ["PIP_FIND_LINKS"]) == ("1", str(tmp_path))
    assert started[0][2:] == ["--here", "--packages", str(tmp_path), "facts"]
    assert groups == ["test", "gpu"]  # NVML answers some questions


def test_the_folder_is_filled_with_what_an_installation_without_a_network_needs(
    load, monkeypatch, tmp_path
):
    module, environment = load("scripts", "first_gpu_run"), load("scripts", "_environment")
    started = []
    monkeypatch.setattr(module.subprocess, "call", lambda line: started.append(line) or 0)
    assert module.main(["--download", str(tmp_path)]) == 0
    ((_, *line),) = started
    assert line[:5] == ["-m", "pip", "download", "--dest", str(tmp_path)]
    needed = {str(module.ROOT), "editables", *environment.requirements("test", "gpu")}
    assert needed < set(line)
    assert any(each.startswith("hatchling") for each in line)
    assert any(each.startswith("nvidia-ml-py") for each in line)
