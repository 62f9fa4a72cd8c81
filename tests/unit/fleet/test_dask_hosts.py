"""What a host of Dask answers, or that it was lost, is a row."""

import json
import logging

import pytest
from fleet_results import ClientWithoutScheduler, stress

from vmtool import __version__
from vmtool.executors import TaskResult
from vmtool.fleet import dask_hosts
from vmtool.fleet.dask_hosts import Cluster, read_task
from vmtool.fleet.machine_readings import MachineReading
from vmtool.results.fleet import Problem


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "kind", "problem"),
    [
        (0, "hello", "", "failed", "exit code 0: it wrote nothing"),
        (2, "", "Usage\nvmtool: error: x", "failed", "exit code 2: vmtool: error: x"),
        (1, "", "No module named vmtool", "failed", "vmtool is not installed for the worker's"),
        (0, json.dumps(stress(vmtool="0.0.9")), "", "version", "vmtool 0.0.9 there"),
        (0, json.dumps(stress(wall_ns="1")), "", "other", "wall_ns: expected integer, got string"),
        (0, json.dumps(stress(schema="vmtool.x")), "", "other", "is not a result of vmtool"),
        (0, "[]", "", "failed", "exit code 0"),
    ],
)
def test_a_host_without_a_result_is_a_row(code, stdout, stderr, kind, problem):
    found = read_task("node1", TaskResult(code, stdout, stderr))
    assert (found.source, found.kind) == ("node1", kind)
    assert problem in found.problem


@pytest.mark.parametrize(
    ("ended", "kind"),
    [("died", "lost"), ("gone", "lost"), ("timeout", "timeout"), ("failed", "failed")],
)
def test_a_command_that_did_not_end_is_a_row_of_its_kind(ended, kind):
    words = "died, did not end"  # as a command may say itself
    assert read_task("node1", TaskResult(None, "", words, ended)) == Problem("node1", kind, words)


def test_a_host_is_named_by_its_address():
    assert read_task("node1", TaskResult(3, json.dumps(stress(host="web")), "")).host == "node1"


def test_a_scheduler_that_dies_loses_a_row_a_host_and_nothing_that_was_gathered():
    document = stress(100, host="web")
    client = ClientWithoutScheduler(json.dumps(document | {"vmtool": __version__}))
    rules = {"timeout_s": None, "retries": 1, "resources": {}, "stop": lambda: False}
    first, second = Cluster(client, "tcp://head:1", alone=False).gather(["stress"], **rules)
    assert isinstance(first, MachineReading)
    lost = "the connection to Dask's scheduler was lost"
    assert second == Problem("10.0.0.2", "lost", lost)


def test_loggers_of_dask_with_levels_of_their_own_are_quiet_too():
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.WARNING)
    with dask_hosts.quiet_dask():
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.level == logging.WARNING
    logger.setLevel(before)
