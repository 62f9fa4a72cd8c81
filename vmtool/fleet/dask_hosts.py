"""Running a command on every host of a Dask cluster, and tasks on its workers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable  # noqa: TC003 - dask reads annotations
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from vmtool import __version__
from vmtool.errors import InputError, UnavailableError, UsageError
from vmtool.executors import TaskResult
from vmtool.fleet.machine_readings import read_document
from vmtool.fleet.result_files import checked
from vmtool.json_documents import parse_quickly
from vmtool.results.fleet import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vmtool.fleet.machine_readings import MachineReading

#: How long to wait for a scheduler, unless Dask's configuration says less; its default is 30 s.
_CONNECT_S: Final = 10.0
_POLL_S: Final = 0.2
#: How long a worker may be gone before its task counts as lost; it may only reconnect.
_GONE_S: Final = 5.0
#: How long a nanny may take to start a worker in place of one that died.
_RESTART_S: Final = 30.0
#: What Dask may add to the time of a task before it counts as lost.
_GRACE_S: Final = 15.0
#: Files and sockets that Dask and vmtool open, and for each worker here, rounded up.
_DESCRIPTORS: Final = 64
_DESCRIPTORS_EACH: Final = 8
#: What starts vmtool on a host: it ends vmtool when its stdin ends, and so also when the worker is
#: killed, as no worker can then end what it started.
_SUPERVISOR: Final = """
import os, signal, subprocess, sys, threading
process = subprocess.Popen([sys.executable, "-m", "vmtool", *sys.argv[1:]], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which vmtool gets as well
def watch():
    os.read(0, 1)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
threading.Thread(target=watch, daemon=True).start()
code = process.wait()
os._exit(code if code >= 0 else 128 - code)
"""


def _task() -> Callable[[str, list[str], float | None], dict[str, Any]]:
    """Return what a worker runs.

    It is made here so that it goes there by value: a worker's process need not import vmtool, its
    interpreter must only find it.
    """

    def run(supervisor: str, arguments: list[str], timeout_s: float | None) -> dict[str, Any]:
        import subprocess  # noqa: PLC0415 - this function is sent as it is
        import sys  # noqa: PLC0415
        import time  # noqa: PLC0415

        from distributed import get_worker  # noqa: PLC0415

        worker = get_worker()
        key = worker.get_current_task()
        process = subprocess.Popen(
            [sys.executable, "-c", supervisor, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # communicate() would close it and so end vmtool.
        stdin: Any = process.stdin
        process.stdin = None
        start = time.monotonic()
        kind = ended = ""
        with stdin:
            while True:
                try:
                    stdout, stderr = process.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    task = worker.state.tasks.get(key)
                    if task is None or task.state == "cancelled":
                        kind, ended = "failed", "was cancelled"
                    elif timeout_s is not None and time.monotonic() - start > timeout_s:
                        kind, ended = "timeout", f"did not end within {timeout_s:g} s"
                    if ended:
                        stdin.close()
        if ended:
            return {"code": None, "stdout": "", "stderr": ended, "kind": kind}
        return {
            "code": process.returncode,
            "stdout": stdout.decode("utf-8", "replace"),
            "stderr": stderr.decode("utf-8", "replace"),
        }

    return run


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler, or start workers here.

    Args:
        address: Of a scheduler, such as ``tcp://head:8786``, or ``local:N`` for N workers on this
            machine. Dask's own configuration says how to authenticate.

    Raises:
        UnavailableError: If Dask is not installed, or there is no scheduler.
        UsageError: If *address* is neither.
    """
    local, colon, number = address.partition(":")
    workers = 0
    if local == "local":
        workers = int(number) if number.isdecimal() else 0
        if not 1 <= workers <= 256:
            raise UsageError(f"--dask {address}: it must be local:N, with N from 1 to 256")
    elif not colon:
        raise UsageError(
            f"--dask {address!r} is not an address", hint="give tcp://HOST:8786 or local:4"
        )
    _check_descriptors(workers)
    try:
        distributed: Any = import_module("distributed")  # an extra
        dask: Any = import_module("dask")
    except ImportError as error:
        raise UnavailableError(
            "--dask needs the package distributed", hint="pip install 'vmtool[fleet]'"
        ) from error
    started: Any = None
    try:
        with quiet_dask():
            if workers:
                # As threads: each only starts a process and reads what it writes.
                started = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=False,
                    dashboard_address="127.0.0.1:0",  # None is port 8787 of all interfaces
                    silence_logs=50,
                )
            known = dask.config.get("distributed.comm.timeouts.connect")
            timeout_s = min(dask.utils.parse_timedelta(known), _CONNECT_S)
            client = distributed.Client(started or address, timeout=timeout_s)
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        if workers:
            raise UnavailableError(
                f"Dask did not start {workers} workers" + (f": {reason[0]}" if reason else ""),
                hint="use fewer",
            ) from error
        raise UnavailableError(
            f"no Dask scheduler at {address}" + (f": {reason[0]}" if reason else ""),
            hint="start one with `dask scheduler`, or use --dask local:4",
        ) from error
    with quiet_dask():
        try:
            yield Cluster(client, address, alone=started is not None)
        finally:
            with suppress(Exception):
                client.close(timeout=_POLL_S)
            if started is not None:
                started.close()


def _check_descriptors(workers: int) -> None:
    """Refuse to start Dask where it would wait for descriptors that it cannot have."""
    if sys.platform == "win32":
        return
    else:
        import resource  # noqa: PLC0415 - exists only on POSIX

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = _DESCRIPTORS + _DESCRIPTORS_EACH * workers
        if soft != resource.RLIM_INFINITY and soft < needed:
            raise UnavailableError(
                f"--dask needs about {needed} open files, and RLIMIT_NOFILE is {soft}",
                hint="raise it (ulimit -n)",
            )


@contextmanager
def quiet_dask() -> Iterator[None]:
    """Keep Dask's loggers from writing to stderr what becomes one error."""
    import logging  # noqa: PLC0415

    # Dask's configuration gives some of them levels of their own.
    loggers = [
        logging.getLogger(name)
        for name in ("distributed", *logging.root.manager.loggerDict)
        if name.partition(".")[0] == "distributed"
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@dataclass(slots=True)
class _Host:
    """A host and its task.

    Attributes:
        name: Its address.
        tried: Workers that the task was given to.
        future: The task, while a worker has it.
        deadline_s: When it counts as lost, by a monotonic clock.
        since_s: Since when its worker is gone; without a task, since when a worker is waited for.
        problem: How its last worker ended.
        restarts: Whether Dask starts another worker in place of its last one.
    """

    name: str
    tried: list[str] = field(default_factory=list)
    future: Any = None
    deadline_s: float | None = None
    since_s: float | None = None
    problem: str = ""
    restarts: bool = False


class Cluster:
    """The workers of one scheduler; also an executor of tasks.

    Args:
        client: Dask's.
        address: As given.
        alone: Whether all workers are on this machine, so that one command runs at a time.
    """

    def __init__(self, client: Any, address: str, *, alone: bool) -> None:
        self._client = client
        self._address = address
        self._alone = alone

    def hosts(self) -> dict[str, list[str]]:
        """Return the workers of each host.

        Raises:
            UnavailableError: If there are none.
        """
        found: dict[str, list[str]] = {}
        for worker, facts in self._workers().items():
            found.setdefault(self._host_of(worker, facts), []).append(worker)
        if not found:
            raise UnavailableError(
                f"the scheduler at {self._address} has no workers",
                hint="start some with `dask worker`",
            )
        return dict(sorted(found.items()))

    def _host_of(self, worker: str, facts: Mapping[str, Any]) -> str:
        if self._alone:
            return f"local-{facts['name']}"
        return worker.rsplit("://", maxsplit=1)[-1].rsplit(":", 1)[0]

    def gather(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float | None,
        retries: int,
        resources: Mapping[str, float],
        stop: Callable[[], bool],
    ) -> Iterator[MachineReading | Problem]:
        """Run a command once on every host, and yield what each says, or what went wrong.

        Args:
            arguments: Of vmtool, without ``--json``.
            timeout_s: How long it may take.
            retries: How often it is tried again if the worker dies, on another worker of the host or
                the one that Dask's nanny starts in its place.
            resources: What of Dask's resources it takes while it runs: see
                https://distributed.dask.org/en/stable/resources.html.
            stop: Called from time to time; once it returns true, what is not done is left out.
        """
        waiting = [_Host(host) for host in self.hosts()]
        command = [*arguments, "--json"]
        running: list[_Host] = []
        while (waiting or running) and not stop():
            while waiting and (not self._alone or not running):
                running.append(waiting.pop(0))
            for host in list(running):
                ended = self._step(host, command, timeout_s, retries, resources)
                if ended is not None:
                    running.remove(host)
                    yield read_task(host.name, ended)
            time.sleep(_POLL_S)
        for host in running:
            if host.future is not None:
                host.future.cancel()

    def _step(
        self,
        host: _Host,
        command: list[str],
        timeout_s: float | None,
        retries: int,
        resources: Mapping[str, float],
    ) -> TaskResult | None:
        """Give the task of *host* to a worker, or look after it; return how it ended at last."""
        if host.future is not None:
            ended = self._ended(host, timeout_s)
            if ended is None or ended.kind != "died":
                return ended
            host.future, host.since_s, host.problem = None, time.monotonic(), ended.stderr
            if len(host.tried) > retries:
                return ended
        # One that was tried may be there again, started anew with the same port.
        here = [
            (worker in host.tried, worker, facts)
            for worker, facts in self._workers().items()
            if self._host_of(worker, facts) == host.name
        ]
        for _, worker, facts in sorted(here, key=itemgetter(0, 1)):
            offered = facts.get("resources") or {}
            if all(offered.get(name, 0) >= amount for name, amount in resources.items()):
                try:
                    host.future = self._client.submit(
                        *(_task(), _SUPERVISOR, command, timeout_s),
                        workers=[worker],
                        allow_other_workers=False,
                        resources=dict(resources),
                        pure=False,
                    )
                except (OSError, RuntimeError):
                    return _GONE
                host.tried.append(worker)
                host.restarts = bool(facts.get("nanny"))
                host.since_s, now = None, time.monotonic()
                host.deadline_s = None if timeout_s is None else now + timeout_s + _GRACE_S
                return None
        if here and not host.tried:
            needed = ", ".join(f"{name}={amount:g}" for name, amount in resources.items())
            return TaskResult(None, "", f"none of its workers has the resources {needed}", "failed")
        if host.restarts and time.monotonic() - (host.since_s or 0) < _RESTART_S:
            return None
        return TaskResult(None, "", host.problem or "its worker died", "died")

    def run(
        self, commands: Sequence[Sequence[str]], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, TaskResult]]:
        run = _task()
        futures = {
            at: self._client.submit(run, _SUPERVISOR, list(command), None, pure=False)
            for at, command in enumerate(commands)
        }
        while futures and not stop():
            for at, future in list(futures.items()):
                if future.done():
                    del futures[at]
                    yield at, _result(future)
            time.sleep(_POLL_S / 4)
        for future in futures.values():
            future.cancel()

    def _workers(self) -> dict[str, Any]:
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _ended(self, host: _Host, timeout_s: float | None) -> TaskResult | None:
        """Return how the task of *host* ended, or ``None`` while it runs."""
        now = time.monotonic()
        if host.future.done():
            return _result(host.future)
        if host.tried[-1] in self._workers():
            host.since_s = None
        elif host.since_s is None:
            host.since_s = now
        elif now - host.since_s > _GONE_S:
            host.future.cancel()
            return TaskResult(None, "", f"its worker {host.tried[-1]} died", "died")
        if host.deadline_s is not None and now > host.deadline_s:
            host.future.cancel()
            return TaskResult(None, "", f"did not end within {timeout_s:g} s", "timeout")
        return None


#: Nothing else cancels a task that is looked at.
_GONE: Final = TaskResult(None, "", "the connection to Dask's scheduler was lost", "gone")


def _result(future: Any) -> TaskResult:
    try:
        error = future.exception()
        if error is None:
            return TaskResult(**future.result())
    except (CancelledError, asyncio.CancelledError):
        return _GONE
    if type(error).__name__ == "KilledWorker":
        return TaskResult(None, "", "its worker died", "died")
    return TaskResult(None, "", f"did not run: {type(error).__name__}: {error}", "failed")


def read_task(host: str, ended: TaskResult) -> MachineReading | Problem:
    """Return what the command on *host* says, or what went wrong."""
    last = (ended.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
    if ended.code is None:
        kind = "lost" if ended.kind in {"died", "gone"} else ended.kind
        return Problem(host, kind, last)
    try:
        document = parse_quickly(host, ended.stdout.encode("utf-8", "surrogatepass"))
    except InputError:
        if "No module named" in ended.stderr and "vmtool" in ended.stderr:
            return Problem(host, "failed", "vmtool is not installed for the worker's Python")
        return Problem(host, "failed", f"exit code {ended.code}: {last}")
    version = document.get("vmtool")
    if version != __version__:
        return Problem(host, "version", f"vmtool {version} there, {__version__} here")
    try:
        reading = read_document(checked(document), host, host)
    except ValueError as error:
        return Problem(host, "other", str(error))
    # Workers on one machine may all say its name.
    return replace(reading, host=host, named=True)
