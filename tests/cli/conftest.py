"""Run the command line as a user does: in this process where that is enough, else in a new one."""

import gc
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vmtool.cli.app import run
from vmtool.machine.cgroups import CgroupFacts, CgroupLevel
from vmtool.machine.facts import (
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    HugeSize,
    MachineFacts,
    MemoryFacts,
    SystemFacts,
)
from vmtool.memory.counters import ProcessLimits
from vmtool.units import GIB, KIB, MIB


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self):
        """The JSON document on stdout."""
        return json.loads(self.stdout)


@pytest.fixture
def vmtool(capsys):
    """Return a function that runs ``vmtool ARGUMENTS`` in this process."""

    def call(*arguments):
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        # Windows ends lines with two characters; a child is read so that they are one.
        out, err = (text.replace("\r\n", "\n") for text in captured)
        return Ran(int(code), out, err)

    return call


@pytest.fixture
def estimate(vmtool):
    """Return a function that runs ``vmtool kv-estimate`` with a command line as text.

    Where a budget is given and nothing is said of weights, they are left out: what most tests
    count is the cache.
    """

    def call(line):
        words = shlex.split(line)
        if "--budget" in words and not {"--weights", "--as"} & set(words):
            words += ["--weights", "none"]
        return vmtool("kv-estimate", *words)

    return call


@pytest.fixture
def help_examples():
    """Return a function that gives the arguments of each example in a command's help."""

    def read(command):
        lines = (line.strip() for line in command.help.splitlines())
        return [line.split()[1:] for line in lines if line.startswith("vmtool ")]

    return read


@pytest.fixture
def vmtool_child():
    """Return a function that runs ``vmtool ARGUMENTS`` in a new process, after *before*."""

    def call(*arguments, before="", stdin=subprocess.DEVNULL):
        program = (
            f"{before}\nimport sys\nfrom vmtool.cli.app import run\nsys.exit(run(sys.argv[1:]))"
        )
        child = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=False,
            capture_output=True,
            encoding="utf-8",
            stdin=stdin,
            timeout=60,
        )
        return Ran(child.returncode, child.stdout, child.stderr)

    return call


@pytest.fixture
def run_on_standin(vmtool, fakecuda, tmp_path_factory, monkeypatch):
    """``run_on_standin(["granularity", "--json"], devices=2)``: a command in this process.

    It finds a driver that was just loaded, and so do its workers, which are processes. What ends a
    process, or is left to its end, needs one: ``run_with_fakecuda``.
    """
    from fakecuda import control

    def run(arguments, **settings):
        folder = tmp_path_factory.mktemp("reports")
        with monkeypatch.context() as workers:
            for name, value in control.environment(folder, **settings).items():
                workers.setenv(name, value)
            fakecuda.reset(**settings)
            ran = vmtool(*arguments)
        gc.collect()  # what the command left to its end goes now
        reports = [fakecuda.report(), *control.read_reports(folder)]
        return control.Finished(ran.code, ran.stdout, ran.stderr, reports)

    yield run
    fakecuda.reset()  # what a failing release left; each test judges its own reports


@dataclass(frozen=True)
class ControlGroup:
    """A new control group with a limit of 64 MiB.

    Attributes:
        join: The Python statement by which a process enters it.
    """

    version: int
    path: str

    @property
    def join(self):
        return f"open({self.path + '/cgroup.procs'!r}, 'w').write('0')"


@pytest.fixture
def with_nvml(fakecuda_lib, tmp_path_factory):
    """``with_nvml(arguments, mode="on", **settings)``: a command beside the stand-in of NVML."""
    from fakecuda import control

    nvml = Path(control.__file__).parent / "nvml"

    def run(arguments, mode="on", **settings):
        folder = tmp_path_factory.mktemp("reports")
        path = f"{nvml}:{control.environment(folder)['PYTHONPATH']}"
        env = {"PYTHONPATH": path, "FAKENVML": mode}
        return control.run_python(["-m", "vmtool", *arguments], folder, env=env, **settings)

    return run


def limited_group(version, parent):
    """Return a new control group below *parent*, or ``None`` where it can't be made."""
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    if not (parent / ("cgroup.controllers" if version == 2 else name)).exists():
        return None
    group = parent / f"vmtool-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / name).write_text(str(64 << 20), encoding="ascii")
    except OSError:
        group.rmdir()
        return None
    return group


@pytest.fixture
def control_group():
    """Return a new control group of 64 MiB, or skip."""
    for version, parent in ((1, "/sys/fs/cgroup/memory"), (2, "/sys/fs/cgroup")):
        group = limited_group(version, Path(parent))
        if group is not None:
            yield ControlGroup(version, str(group))
            group.rmdir()
            return
    pytest.skip("no control group can be made here (needs root and a writable hierarchy)")


@pytest.fixture
def machine_facts():
    """Return the facts of one machine, a container of 8 GiB, for reports that must not change."""
    return MachineFacts(
        system=SystemFacts("Linux", "6.8.0", "x86_64", "EPYC 7B13", 8, 4, "3.12.3", "0.2.0"),
        page_bytes=4096,
        allocation_bytes=4096,
        memory=MemoryFacts(32 * GIB, 20 * GIB, 0, 0, oom_kills=2),
        huge_pages=HugePageFacts(
            "madvise",
            "madvise",
            2 * MIB,
            sizes=(HugeSize(64 * KIB, "never"), HugeSize(2 * MIB, "inherit")),
            pools=(HugePool(2 * MIB, 8, 3),),
        ),
        commit=CommitFacts(0, 50, 16 * GIB, 2 * GIB),
        cgroup=CgroupFacts(
            (CgroupLevel("/sys/fs/cgroup", 2, 8 * GIB, None, 2 * GIB, GIB, oom_kills=0),)
        ),
        process=ProcessLimits(
            mappings=130,
            max_mappings=65530,
            address_space_bytes=24 * MIB,
            data_bytes=12 * MIB,
            memlock_limit_bytes=8 * MIB,
        ),
        environment=EnvironmentFacts(container="docker", hypervisor="KVM"),
    )
