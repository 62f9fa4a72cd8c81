"""``vmtool fleet`` as its users run it: on files, and on real Dask schedulers and workers."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from fleet_results import ClientWithoutScheduler, check, stress
from stored_runs import described

from vmtool import __version__
from vmtool.fleet.dask_hosts import Cluster as DaskCluster
from vmtool.fleet.dask_hosts import read_task
from vmtool.fleet.judge import judge
from vmtool.fleet.machine_readings import MachineReading
from vmtool.fleet.machines import Fleet
from vmtool.report import fleet as report

COMMIT = "stress.fixed.commit.median_ns"


def readings(machines=20, slow=(7,), by=1.6):
    """Yield machines without noise that a test would not know: some runs higher, some lower."""
    for number in range(machines):
        own = 1 + 0.01 * (number % 5) if number not in slow else by
        runs = tuple({COMMIT: 40_000 * own * (1 + 0.02 * (at - 2))} for at in range(5))
        thp = "never" if number in slow else "madvise"
        facts = {"system.cpu_model": "EPYC", "system.cpus": "64", "huge_pages.thp_mode": thp}
        yield MachineReading(f"node{number:02}", "", "vmtool.stress", "0", facts, runs)


def stored(folder, **more):
    """Write results that say what :func:`readings` says."""
    for reading in readings(**more):
        medians = [round(run[COMMIT]) for run in reading.runs]
        document = stress(*medians, thp=reading.facts["huge_pages.thp_mode"])
        (folder / f"{reading.host}.json").write_text(json.dumps(document))


def test_the_report(golden):
    fleet = Fleet()
    for reading in readings():
        fleet.add(reading)
    golden("fleet", partial(report.to_text, judge(fleet)))


def test_a_machine_that_differs_is_named_with_the_reason_and_exits_3(vmtool, tmp_path):
    stored(tmp_path)
    files = ("--html", str(tmp_path / "f.html"), "--csv", str(tmp_path / "f.csv"))
    ran = vmtool("fleet", str(tmp_path), *files)
    text = " ".join(ran.stdout.split())
    assert ran.code == 3
    assert text.startswith("1 of 20 machines differs: node07")
    assert "only fact that it does not share: huge_pages.thp_mode never (others: madvise)" in text
    assert "node07" in (tmp_path / "f.html").read_text()
    rows = (tmp_path / "f.csv").read_text().splitlines()
    assert len(rows) == 1 + 20 * 7
    assert {tuple(row.split(",")[1:3]) for row in rows if row.endswith(",1")} == {
        ("node07", f"stress.host.64KiB.fixed.commit.{name}_ns") for name in ("median", "p99")
    }
    described(vmtool("fleet", str(tmp_path / "node*.json"), "--json").document)
    assert vmtool("fleet", str(tmp_path / "node0[0-6].json")).code == 0
    assert "**1 of 20 machines" in vmtool("fleet", str(tmp_path), "--markdown").stdout
    assert "node03" in vmtool("fleet", str(tmp_path), "--all").stdout


def test_a_baseline_judges_machines_to_come(vmtool, tmp_path):
    stored(tmp_path, slow=())
    saved = tmp_path / "saved.baseline"
    assert vmtool("fleet", str(tmp_path), "--save", str(saved)).code == 0
    described(json.loads(saved.read_text()))
    stored(tmp_path, slow=(7,))
    one = vmtool("fleet", str(tmp_path / "node07.json"), "--baseline", str(saved))
    assert one.code == 3
    assert "huge_pages.thp_mode never" in " ".join(one.stdout.split())
    assert vmtool("fleet", str(tmp_path / "node08.json"), "--baseline", str(saved)).code == 0
    few = vmtool("fleet", str(tmp_path / "node07.json"), "--save", str(tmp_path / "few"))
    assert "is not saved: fewer than 8 machines that are alike" in few.stderr
    wrong = vmtool("fleet", str(tmp_path), "--baseline", str(tmp_path / "node01.json"))
    assert (wrong.code, wrong.stdout) == (2, "")


@pytest.mark.parametrize(("threshold", "saved", "left"), [("50%", 2, 0), ("10%", 0, 2)])
def test_what_splits_a_group_by_the_threshold_is_not_saved(
    vmtool, tmp_path, threshold, saved, left
):
    stored(tmp_path, machines=40, slow=range(0, 40, 2), by=1.3)
    path = tmp_path / "saved.baseline"
    ran = vmtool("fleet", str(tmp_path), "--threshold", threshold, "--save", str(path))
    measures = [each["measure"] for each in json.loads(path.read_text())["groups"][0]["measures"]]
    assert sum(".commit." in each for each in measures) == saved
    assert (f"without {left} measures that split it" in ran.stderr) == bool(left)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "version: is 99; this vmtool reads 1"),
        ({"schema": "vmtool.fleet"}, "is not a baseline"),
        ({"groups": [{}]}, "groups[0].alike: is missing"),
        ({"usual": 0}, "groups[0].measures[0]: usual must be above 0"),
        ({"scale": -1}, "groups[0].measures[0]: scale and runs_scale must be at least 0"),
        ({"runs_scale": -1}, "scale and runs_scale"),
        ({"usual": 1e-300}, "usual must be above 0 where logarithmic is true, at least 2^-64"),
        ({"usual": 1e300}, "and less than 2^64"),
        ({"usual": -1e300, "logarithmic": False}, "usual must be between -2^128 and 2^128"),
        ({"scale": 1e200}, "scale and runs_scale must be at least 0 and less than 2^128"),
        ({"runs_scale": 1e200}, "scale and runs_scale"),
        ({"machines": 1}, "groups[0].measures[0]: machines must be at least 2"),
        ({"machines": "20"}, "groups[0].measures[0].machines: expected integer, got string"),
    ],
)
def test_a_baseline_that_cannot_be_is_refused(vmtool, tmp_path, change, words):
    measure = {"measure": COMMIT, "usual": 5.0, "scale": 0.1, "logarithmic": True}
    measure |= {"runs_scale": 0.1, "machines": 20}
    head = {"schema": "vmtool.fleet.baseline", "version": 1}
    change, measure = (
        ({}, measure | change) if change.keys() <= measure.keys() else (change, measure)
    )
    group = {"alike": {}, "measures": [measure], "facts": {}}
    saved = tmp_path / "saved"
    saved.write_text(json.dumps(head | {"groups": [group]} | change))
    (tmp_path / "a.json").write_text(json.dumps(stress(100, 101)))
    ran = vmtool("fleet", str(tmp_path / "a.json"), "--baseline", str(saved))
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no results"),
        (("--", "doctor"), "needs --dask"),
        (("--dask", "local:2"), "needs a command"),
        (("--dask", "local:2", "x.json", "--", "doctor"), "not both"),
        (("--dask", "local:0", "--", "doctor"), "local:N"),
        (("--dask", "somewhere", "--", "doctor"), "not an address"),
        (("--dask", "local:2", "--", "fleet"), "cannot be fleet"),
        (("--dask", "local:2", "--", "stress", "--nope"), "--nope"),
        (("--dask", "local:2", "--", "stress", "--help"), "must not ask for help"),
        (("--dask", "local:2", "--", "stress", "-o", "x.json"), "give -o before"),
        (("--dask", "local:2", "--", "inspect", "--", "ls"), "cannot have a -- of its own"),
        (("--timeout", "1s", "x.json"), "needs --dask"),
        (("--resources", "a=1", "x.json"), "needs --dask"),
        (("--dask", "local:1", "--resources", "a", "--", "doctor"), "it must be NAME=N"),
        (("--dask", "local:1", "--resources", "a=0", "--", "doctor"), "it must be NAME=N"),
        (("--dask", "local:1", "--", "schema"), "cannot be schema"),
        (("",), "FILE has an empty value"),
        (("/nowhere/*.json",), "no results there"),
        (("--threshold", "0%", "x"), "--threshold"),
        (("--markdown", "--json", "x"), "cannot be used together"),
    ],
)
def test_wrong_usage_is_2(vmtool, arguments, words):
    ran = vmtool("fleet", *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


def test_input_without_a_result_is_2_and_each_source_is_named(vmtool, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("not JSON")
    for more in ((), ("--json",)):
        ran = vmtool("fleet", str(tmp_path), *more)
        assert (ran.code, ran.stdout) == (2, "")
        first, second = ran.stderr.splitlines()
        assert first.endswith("a.json: is not a result of vmtool")
        assert "b.json: line 1, column 1: is not JSON" in second


def test_a_fact_that_no_result_has_is_wrong_usage(vmtool, tmp_path):
    stored(tmp_path)
    ran = vmtool("fleet", str(tmp_path), "--by", "system.cpu")
    assert (ran.code, ran.stdout) == (2, "")
    assert "system.cpus" in ran.stderr


def test_few_machines_are_counted_with_their_results_and_the_reason_comes_once(vmtool, tmp_path):
    for number in range(5):
        document = stress(100 + number, 101, host="node1")
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    text = vmtool("fleet", str(tmp_path)).stdout
    assert text.startswith("not decided: 5 results of 1 machine\n")
    assert " ".join(text.split()).count("fewer than 8 machines that are alike") == 1


def test_results_that_do_not_name_their_machine_may_be_of_the_same_one(vmtool, tmp_path):
    documents = {
        "stress": stress(100, 101),
        "check": check(100, 101),
        "other": stress(9, thp="never"),
    }
    documents["named"] = stress(100, 101, host="node1")
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    ran = vmtool("fleet", str(tmp_path))
    assert (
        "4 machines (A, 2 CPUs, 8 GiB), perhaps fewer: 2 are known by file name only" in ran.stdout
    )
    (group,) = vmtool("fleet", str(tmp_path), "--json").document["groups"]
    assert group["unnamed"] == ["check", "stress"]


@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "--backing", "host"),
        ("granularity", "--backing", "host"),
        ("inspect", str(os.getpid())),
    ],
    ids=lambda command: command[0],
)
def test_several_results_of_one_host_are_one_machine(vmtool, tmp_path, command):
    for name in ("first", "second"):
        (tmp_path / f"{name}.json").write_text(vmtool(*command, "--json").stdout)
    unnamed = vmtool(*command, "--json", "--no-host").document
    assert unnamed["conditions"]["host"] is None
    assert unnamed["conditions"]["started"].endswith("Z")
    (group,) = vmtool("fleet", str(tmp_path), "--json").document["groups"]
    assert (len(group["hosts"]), group["unnamed"]) == (1, [])


def test_a_copy_of_a_result_is_not_a_second_run(vmtool, tmp_path):
    for at in range(10):
        document = stress(100 + at, host=f"node{at}")
        (tmp_path / f"{at}.json").write_text(json.dumps(document))
        (tmp_path / f"copy-{at}.json").write_text(json.dumps(document, indent=2))
    document = vmtool("fleet", str(tmp_path), "--json").document
    assert document["results"] == 10
    assert [group["undecided"] for group in document["groups"]] == ["single"]
    assert [problem["kind"] for problem in document["problems"]] == ["copy"] * 10
    assert "no result" not in vmtool("fleet", str(tmp_path)).stdout


def test_a_machine_is_explained_by_those_that_were_measured_in_the_same_way(vmtool, tmp_path):
    # node07's own check, under the name of its file, would say that others share its fact.
    stored(tmp_path)
    for number in range(20):
        document = check(100, 101)
        document["machine"]["huge_pages"]["thp_mode"] = "never" if number == 7 else "madvise"
        (tmp_path / f"check{number}.json").write_text(json.dumps(document))
    ran = vmtool("fleet", str(tmp_path), "--json")
    reasons = [each["reasons"] for each in ran.document["groups"][0]["outliers"]]
    assert {(each[0]["fact"], each[0]["separation"]) for each in reasons} == {
        ("huge_pages.thp_mode", 1.0)
    }


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
@pytest.mark.parametrize(("path", "code"), [("-", 130), ("/dev/full", 1)])
def test_ctrl_c_exits_130_and_1_if_the_result_cannot_be_written(vmtool, tmp_path, path, code):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def interrupt():
        with pipe.open("wb"):  # waits until it is read
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    sender = threading.Thread(target=interrupt)
    sender.start()
    ran = vmtool("fleet", str(pipe), "-o", path)
    sender.join()
    assert ran.code == code
    assert ran.stderr.endswith("vmtool: interrupted\n")
    assert ("cannot write /dev/full: No space left" in ran.stderr) == (code == 1)


def test_the_machine_that_is_given_a_handicap_is_named_by_its_measures(vmtool, tmp_path):
    # Where madvise seems to do nothing, committing is no more than a call.
    command = ("stress", "--method", "advise", "--verify", "off", "--granule", "64KiB")
    command = (*command, "--cycles", "300", "--runs", "2", "--json", "--quiet")
    plain, handicapped = (
        vmtool(*command, *more).document for more in ((), ("--inject", "madvise:30+=SKIP"))
    )
    for number in range(10):
        made = json.loads(json.dumps(handicapped if number == 4 else plain))
        made["conditions"]["host"] = f"node{number}"
        for run in made["runs"] if number != 4 else ():
            for phase in run["methods"][0]["phases"]:
                median = phase["summary"]["median_ns"]
                phase["summary"]["median_ns"] = round(median * (1 + 0.01 * (number % 5)))
        (tmp_path / f"{number}.json").write_text(json.dumps(made))
    ran = vmtool("fleet", str(tmp_path), "--json")
    assert ran.code == 3
    outliers = ran.document["groups"][0]["outliers"]
    assert {each["host"] for each in outliers} == {"node4"}
    ratios = {each["measure"]: each["ratio"] for each in outliers}
    assert ratios["stress.host.64KiB.advise.commit.median_ns"] < 0.5


def test_a_scheduler_that_dies_keeps_the_replays_that_were_made(vmtool, monkeypatch):
    rules = ("kv-replay", "synthetic:requests=30,rate=20", "--model", "qwen3-0.6b", "--json")
    rules = (*rules, "--budget", "1GiB")
    client = ClientWithoutScheduler(json.dumps(vmtool(*rules).document))
    cluster = DaskCluster(client, "tcp://head:1", alone=False)
    monkeypatch.setattr("vmtool.fleet.dask_hosts.connected", lambda _: nullcontext(cluster))
    axes = ("--compare", "granule=64KiB,2MiB", "--dask", "tcp://head:1")
    ran = vmtool(*rules, *axes)
    assert ran.code == 4
    assert "error: the connection to Dask's scheduler was lost; the result has 1 row" in ran.stderr
    assert [row["labels"]["granule"] for row in ran.document["rows"]] == ["64KiB"]
    assert not ran.document["complete"]
    assert ran.document["problem"] == "the connection to Dask's scheduler was lost"


# ---- Dask -------------------------------------------------------------------------------------

pytest.importorskip("distributed")
ON_LOOPBACK = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on its loopback"
)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A scheduler and workers, each of its own address, in processes of their own."""

    def __init__(self, folder, stack, environment=None, options=(), scheme="tcp"):
        self.folder = folder
        self.environment = environment or {}
        self.options = options
        self.address = f"{scheme}://127.0.0.1:{free_port()}"
        self.stack = stack
        self.workers = []
        port = self.address.rpartition(":")[2]
        self.start("dask_scheduler", "--host", f"{scheme}://127.0.0.1", "--port", port, *options)

    def start(self, module, *arguments, environment=None):
        with (self.folder / f"{module}-{len(self.workers)}.txt").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--no-dashboard"],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **(environment or {})},
                cwd=self.folder,
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def worker(self, number, environment=None, *options):
        host = f"127.0.0.{number}"
        folder = self.folder / f"worker{number}"
        folder.mkdir(exist_ok=True)
        process = self.start(
            *("dask_worker", self.address, "--host", host, "--nthreads", "1"),
            *("--death-timeout", "60", "--local-directory", str(folder), *self.options),
            *(() if "--nanny" in options else ("--no-nanny",)),
            *options,
            environment=environment,
        )
        self.workers.append(process)

    def wait(self, count):
        from distributed import Client

        with Client(self.address, timeout=60) as client:
            client.wait_for_workers(count, timeout=90)

    @contextmanager
    def more(self, environments, nannies=()):
        """Add workers of these hosts for the block; *nannies* are started again."""
        before = len(self.workers)
        for number, environment in environments.items():
            self.worker(number, environment, *(("--nanny",) if number in nannies else ()))
        self.wait(before + len(environments))
        try:
            yield
        finally:
            for process in self.workers[before:]:
                process.terminate()  # so that a nanny ends its worker
                process.wait()
            del self.workers[before:]
            self.forget(before)

    def forget(self, count):
        """Wait until the scheduler knows no more workers than *count*."""
        from distributed import Client

        end = time.monotonic() + 60
        with Client(self.address, timeout=60) as client:
            while len(client.scheduler_info(n_workers=-1)["workers"]) > count:
                assert time.monotonic() < end
                time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dask")
    with ExitStack() as stack:
        made = Cluster(folder, stack)
        # A real ``check`` takes a minute of four workers on two processors: this runs in its place.
        made.check = folder / "check.py"
        stands_in = f"if sys.argv[1] == 'check': sys.exit(exec(open({str(made.check)!r}).read()))"
        environment = shim(folder / "stand-in", real("stand-in", stands_in))
        made.worker(2, environment, "--resources", "vmtool=1")
        for number in (3, 4, 5, 5):  # two of one host
            made.worker(number, environment)
        made.wait(5)
        yield made


def shim(folder, body):
    """Return an environment in which ``-m vmtool`` runs *body*."""
    package = folder / "vmtool"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(body)
    return {"PYTHONPATH": str(folder)}


def real(name, before):
    """Return a body that runs vmtool itself after *before*; *name* is the folder of its shim."""
    return f"""
import sys
sys.path = [path for path in sys.path if {name!r} not in path]
del sys.modules["vmtool"]
{before}
from vmtool.cli.app import entry
entry()
"""


@ON_LOOPBACK
def test_a_command_runs_once_on_every_host(vmtool, cluster):
    ran = vmtool("fleet", "--dask", cluster.address, "--json", "--", "granularity")
    assert ran.code == 0
    document = ran.document
    described(document)
    assert document["complete"]
    assert [group["hosts"] for group in document["groups"]] == [
        ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]
    ]
    assert not document["problems"]


@ON_LOOPBACK
def test_check_is_gathered_with_the_runs_of_its_stress(vmtool, cluster, tmp_path):
    document = check(100, 101, failed=["contents"]) | {"more": [0] * 500_000}
    (tmp_path / "check.json").write_text(json.dumps(document))
    cluster.check.write_text(f"print(open({str(tmp_path / 'check.json')!r}).read())")
    ran = vmtool("fleet", "--dask", cluster.address, "--json", "--", "check")
    assert ran.code == 3
    (group,) = ran.document["groups"]
    spreads = {spread["measure"]: spread["values"] for spread in group["spreads"]}
    (mean,) = set(spreads["check.host.64KiB.fixed.commit.median_ns"])
    assert 100 < mean < 101
    problems = ran.document["problems"]
    assert [each["source"] for each in problems] == group["hosts"]
    assert {each["problem"] for each in problems} == {"failed: contents"}


def test_workers_here_run_a_command_one_after_the_other(vmtool):
    ran = vmtool("fleet", "--dask", "local:2", "--json", "--", "reserve", "1MiB")
    assert ran.code == 0
    (group,) = ran.document["groups"]
    assert group["hosts"] == ["local-0", "local-1"]
    assert group["undecided"] == "few"


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not limited")
def test_too_few_descriptors_are_one_clear_error(vmtool_child):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))"
    ran = vmtool_child("fleet", "--dask", "local:2", "--", "doctor", before=limit)
    assert (ran.code, ran.stdout) == (4, "")
    assert "RLIMIT_NOFILE is 40" in ran.stderr
    assert "Traceback" not in ran.stderr


@ON_LOOPBACK
def test_ctrl_c_keeps_what_was_gathered_and_ends_what_runs(vmtool, cluster, tmp_path, monkeypatch):
    document = json.dumps(check(100, 101))
    # The first host is done, and the others are not.
    cluster.check.write_text(
        f"""
import os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
(folder / f"{{os.getpid()}}.pid").touch()
try:
    (folder / "first").touch(exist_ok=False)
except FileExistsError:
    time.sleep(60)
print({document!r})
"""
    )

    def read_and_interrupt(*arguments):
        while len(list(tmp_path.glob("*.pid"))) < 4:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        return read_task(*arguments)

    monkeypatch.setattr("vmtool.fleet.dask_hosts.read_task", read_and_interrupt)
    ran = vmtool("fleet", "--dask", cluster.address, "--json", "--", "check")
    assert ran.code == 130
    assert "the result covers what was gathered until then" in ran.stderr
    assert (ran.document["complete"], ran.document["machines"]) == (False, 1)
    end = time.monotonic() + 60
    for pid in [int(path.stem) for path in tmp_path.glob("*.pid")]:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < end
            time.sleep(0.05)


@ON_LOOPBACK
def test_a_comparison_of_replays_on_workers_is_the_serial_one(vmtool, cluster):
    rules = ("kv-replay", "synthetic:requests=30,rate=20", "--model", "qwen3-0.6b")
    rules = (*rules, "--budget", "1GiB", "--compare", "granule=64KiB,2MiB", "--json")
    serial = vmtool(*rules).document
    spread = vmtool(*rules, "--dask", cluster.address).document
    assert serial.pop("command") != spread.pop("command")
    assert spread == serial


#: Waits to be killed with its worker, when it runs first; PART is its file.
WAITING = """
import os, pathlib, sys, time
first = pathlib.Path(PART)
if not first.exists():
    first.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()}")
    first.with_suffix(".part").rename(first)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def troubled(cluster, tmp_path_factory):
    """What a command gives that runs on hosts of every kind, and the processes that were left."""
    folder = tmp_path_factory.mktemp("troubled")
    old = 'print(\'{"schema": "vmtool.granularity", "vmtool": "0.0.9", "machine": {}}\')'
    none = "raise ModuleNotFoundError(\"No module named 'vmtool'\")"
    odd = json.dumps(stress(checks=[{}]))
    killed, again = folder / "killed.pid", folder / "again.pid"
    waiting = real("again", WAITING.replace("PART", repr(str(again))))
    environments = {
        6: shim(folder / "old", old),
        7: shim(folder / "none", none),
        8: shim(folder / "odd", f"print({odd!r})"),
        9: shim(folder / "killed", WAITING.replace("PART", repr(str(killed)))),
        10: shim(folder / "again", waiting),
    }
    command = [sys.executable, "-m", "vmtool", "fleet", "--dask", cluster.address, "--json"]
    left = []
    with cluster.more(environments, nannies=(10,)):
        fleet = subprocess.Popen([*command, "--", "granularity"], stdout=subprocess.PIPE)
        for path in (killed, again):
            while not path.exists():
                assert fleet.poll() is None
                time.sleep(0.05)
            own, supervisor = map(int, path.read_text().split())
            parent = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(parent), signal.SIGKILL)
            left.append(own)
        document = json.loads(fleet.communicate(timeout=90)[0])
    return document, left


@ON_LOOPBACK
@pytest.mark.parametrize(
    ("host", "kind", "problem"),
    [
        ("127.0.0.6", "version", f"vmtool 0.0.9 there, {__version__} here"),
        ("127.0.0.7", "failed", "vmtool is not installed for the worker's Python"),
        ("127.0.0.8", "other", "checks[0].name: is missing"),
        ("127.0.0.9", "lost", "its worker tcp://127.0.0.9"),
    ],
)
def test_a_host_without_a_result_is_a_row_and_the_others_are_read(troubled, host, kind, problem):
    document, _ = troubled
    assert document["machines"] == 5
    problems = {each["source"]: each for each in document["problems"]}
    assert len(problems) == 4
    assert problems[host]["kind"] == kind
    assert problems[host]["problem"].startswith(problem)


@ON_LOOPBACK
def test_a_host_whose_worker_is_started_again_is_tried_again(troubled):
    document, _ = troubled
    assert "127.0.0.10" in document["groups"][0]["hosts"]


@ON_LOOPBACK
def test_vmtool_ends_with_its_worker(troubled):
    _, left = troubled
    assert len(left) == 2
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@ON_LOOPBACK
def test_a_command_waits_for_resources_and_a_host_without_them_is_a_row(vmtool, cluster):
    command = ("fleet", "--dask", cluster.address, "--resources", "vmtool=1", "--json")
    document = vmtool(*command, "--", "granularity").document
    assert document["groups"][0]["hosts"] == ["127.0.0.2"]
    assert {(each["source"], each["problem"]) for each in document["problems"]} == {
        (f"127.0.0.{number}", "none of its workers has the resources vmtool=1")
        for number in (3, 4, 5)
    }


@ON_LOOPBACK
def test_the_machine_that_is_given_a_handicap_is_the_one_that_is_named(vmtool, cluster, tmp_path):
    # The same command everywhere, but on one host the kernel seems to do nothing at the 30th call.
    injected = real("handicap", 'sys.argv += ["--inject", "madvise:30+=SKIP"]')
    with cluster.more({6: shim(tmp_path / "handicap", injected)}):
        rules = ("stress", "--method", "advise", "--cycles", "60", "--granule", "64KiB")
        ran = vmtool("fleet", "--dask", cluster.address, "--json", "--", *rules, "--runs", "1")
    assert ran.code == 3
    assert [(p["source"], p["kind"]) for p in ran.document["problems"]] == [("127.0.0.6", "checks")]


@ON_LOOPBACK
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_uses_dasks_own_configuration(vmtool_child, tmp_path, monkeypatch):
    import dask

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    environment = {f"{prefix}CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        environment[f"{prefix}{role}__CERT"] = str(certificate)
        environment[f"{prefix}{role}__KEY"] = str(key)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack, environment, scheme="tls")
        cluster.worker(2)
        ours = {"ca-file": certificate, "client.cert": certificate, "client.key": key}
        with dask.config.set({f"distributed.comm.tls.{name}": str(ours[name]) for name in ours}):
            cluster.wait(1)
        command = ("fleet", "--dask", cluster.address, "--json", "--", "granularity")
        refused = vmtool_child(*command)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        ran = vmtool_child(*command)
    assert refused.code == 4
    assert "Traceback" not in refused.stderr
    assert ran.code == 0
    assert ran.document["machines"] == 1


@ON_LOOPBACK
def test_a_host_that_takes_too_long_is_a_row(vmtool, cluster):
    ran = vmtool(
        *("fleet", "--dask", cluster.address, "--timeout", "1ms", "--json", "--", "granularity")
    )
    assert ran.code == 4
    assert "no host gave a result" in ran.stderr
    assert {problem["kind"] for problem in ran.document["problems"]} == {"timeout"}
    assert len(ran.document["problems"]) == 4


def test_no_scheduler_is_one_clear_error(vmtool):
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "300ms"}):
        ran = vmtool("fleet", "--dask", f"tcp://127.0.0.1:{free_port()}", "--", "doctor")
    assert (ran.code, ran.stdout) == (4, "")
    assert "no Dask scheduler at tcp://127.0.0.1:" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_command_that_was_parsed_for_hosts_still_has_its_short_help(vmtool):
    assert vmtool("fleet", "--dask", "local:1", "--", "limits", "-o", "x.json").code == 2
    assert vmtool("limits", "-h").code == 0
