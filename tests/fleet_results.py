"""Documents as vmtool writes them, of machines that a test chooses."""

import json
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import stored_runs

from vmtool.json_documents import encode
from vmtool.machine.run_conditions import RunConditions
from vmtool.results.check import MachineCheckResult, MemoryCheck
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.document_versions import document_of
from vmtool.results.stress import Outcome, RunResult

SYSTEM = {
    **stored_runs.MACHINE["system"],
    "cpus_usable": 2,
    "python": "3.12",
    "vmtool": "0.2.0",
}
MACHINE = {**stored_runs.MACHINE, "system": SYSTEM, "cgroup": {"levels": []}}


def stress(*runs, thp="madvise", host=None, **more):
    """A result of stress whose runs commit in so many ns, with other values for *more*."""
    methods = [stored_runs.method(commit=[median] * 3) for median in runs or (100,)]
    made = tuple(
        RunResult(at, Outcome.COMPLETE, 10**9, ("fixed",), (each,))
        for at, each in enumerate(methods)
    )
    facts = {**MACHINE, "huge_pages": {"thp_mode": thp}}
    conditions = RunConditions("2026-11-30T22:30:00Z", host, 86_400, (0.5, 0.4, 0.3), 0.93)
    result = stored_runs.run(
        methods[0],
        machine=facts,
        conditions=conditions,
        runs=made if runs else (),
        slopes=(),
        checkpoints=(),
    )
    return stored_runs.as_document(result) | more


def check(*runs, failed=()):
    """A result of check whose runs of stress commit in so many ns."""
    stress_result = stored_runs.run(stored_runs.method(commit=[runs[0]] * 3), slopes=())
    methods = [stored_runs.method(commit=[median] * 3) for median in runs]
    made = tuple(
        RunResult(at, Outcome.COMPLETE, 10**9, ("fixed",), (each,))
        for at, each in enumerate(methods)
    )
    checks = tuple(Check(name, CheckOutcome.FAILED, {}) for name in failed)
    memory = MemoryCheck(
        "host", None, checks=checks, stress=replace(stress_result, runs=made, checkpoints=())
    )
    result = MachineCheckResult(1, True, not failed, 1 << 30, "x", (), (memory,), machine=MACHINE)
    return json.loads(encode(result, document_of(result).head(["vmtool", "check"])))


class CancelledTask:
    """A task of Dask whose scheduler is gone."""

    def done(self):
        return True

    def exception(self):
        raise CancelledError

    def result(self):
        raise CancelledError


class ClientWithoutScheduler:
    """Two hosts: the first is done, and then the scheduler dies."""

    def __init__(self, first):
        self.first = first

    def scheduler_info(self, **_):
        return {"workers": {f"tcp://10.0.0.{at}:1": {"name": at} for at in (1, 2)}}

    def submit(self, *_, **__):
        first, self.first = self.first, None
        if first is None:
            return CancelledTask()
        future = Future()
        future.set_result({"code": 0, "stdout": first, "stderr": ""})
        return future
