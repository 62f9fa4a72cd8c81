"""A command on every host of a Dask cluster, and tasks on its workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable  # noqa: TC003 - dask reads annotations
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vmtool import __version__
from vmtool.errors import UnavailableError, UsageError
from vmtool.fleet.measures import read_document
from vmtool.results.fleet import Problem
from vmtool.tasks import TaskResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.fleet.measures import MachineReading

_CONNECT_S: Final = 10
_POLL_S: Final = 0.2
#: How long a worker may be gone before its task counts as lost; it may only reconnect.
_GONE_S: Final = 5.0
#: What Dask may add to the time of a task before it counts as lost.
_GRACE_S: Final = 15.0
#: Files and sockets that Dask and vmtool open, and for each worker here, rounded up.
_DESCRIPTORS: Final = 64
_DESCRIPTORS_EACH: Final = 8


def _task() -> Callable[[list[str], float | None], dict[str, Any]]:
    """Return what a worker runs.

    It is made here so that it goes there by value: a worker's process need not import vmtool, its
    interpreter must only find it.
    """

    def run(arguments: list[str], timeout_s: float | None) -> dict[str, Any]:
        import subprocess  # noqa: PLC0415 - this function is sent as it is
        import sys  # noqa: PLC0415
        import time  # noqa: PLC0415

        from distributed import get_worker  # noqa: PLC0415

        worker = get_worker()
        key = worker.get_current_task()
        process = subprocess.Popen(
            [sys.executable, "-m", "vmtool", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        start = time.monotonic()
        ended = ""
        while True:
            try:
                stdout, stderr = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if ended:
                    # It was asked to end and did not.
                    if time.monotonic() - start > 5:
                        process.kill()
                    continue
                task = worker.state.tasks.get(key)
                if task is None or task.state == "cancelled":
                    ended = "was cancelled"
                elif timeout_s is not None and time.monotonic() - start > timeout_s:
                    ended = f"did not end within {timeout_s:g} s"
                else:
                    continue
                process.terminate()
                start = time.monotonic()
        if ended:
            return {"code": None, "stdout": "", "stderr": ended}
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
    except ImportError as error:
        raise UnavailableError(
            "--dask needs the package distributed", hint="pip install 'vmtool[fleet]'"
        ) from error
    started: Any = None
    try:
        with _quiet():
            if workers:
                # As threads: each only starts a process and reads what it writes.
                started = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=False,
                    dashboard_address="127.0.0.1:0",  # None is port 8787 of all interfaces
                    silence_logs=50,
                )
            client = distributed.Client(started or address, timeout=_CONNECT_S)
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
def _quiet() -> Iterator[None]:
    """Keep Dask's loggers from writing to stderr what becomes one error."""
    import logging  # noqa: PLC0415

    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@dataclass(slots=True)
class _Pending:
    """A task on a worker."""

    host: str
    index: int
    worker: str
    future: Any
    deadline_s: float | None
    gone_since_s: float | None = None
    tried: list[str] = field(default_factory=list)


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
            name = str(facts["name"]) if self._alone else worker.split("://")[-1].rsplit(":", 1)[0]
            host = f"local-{name}" if self._alone else name
            found.setdefault(host, []).append(worker)
        if not found:
            raise UnavailableError(
                f"the scheduler at {self._address} has no workers",
                hint="start some with `dask worker`",
            )
        return dict(sorted(found.items()))

    def gather(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float | None,
        retries: int,
        stop: Callable[[], bool],
    ) -> Iterator[MachineReading | Problem]:
        """Run a command once on every host, and yield what each says, or what went wrong.

        Args:
            arguments: Of vmtool, without ``--json``.
            timeout_s: How long it may take.
            retries: How often it is tried again on another worker of a host whose worker died.
            stop: Asked now and then; what is not done then is left out.
        """
        hosts = self.hosts()
        waiting = [(host, list(workers)) for host, workers in hosts.items()]
        command = [*arguments, "--json"]
        pending: list[_Pending] = []
        while (waiting or pending) and not stop():
            while waiting and (not self._alone or not pending):
                host, workers = waiting.pop(0)
                pending.append(self._submit(host, 0, workers[0], command, timeout_s))
            for task in list(pending):
                ended = self._ended(task, timeout_s)
                if ended is None:
                    continue
                pending.remove(task)
                if ended.code is None and "died" in ended.stderr and len(task.tried) <= retries:
                    left = [w for w in hosts[task.host] if w not in task.tried]
                    left = [worker for worker in left if worker in self._workers()]
                    if left:
                        again = self._submit(task.host, 0, left[0], command, timeout_s)
                        again.tried = [*task.tried, *again.tried]
                        pending.append(again)
                        continue
                yield read_task(task.host, ended)
            time.sleep(_POLL_S)
        for task in pending:
            task.future.cancel()

    def run(
        self, commands: Sequence[Sequence[str]], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, TaskResult]]:
        run = _task()
        futures = {
            at: self._client.submit(run, list(command), None, pure=False)
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

    def _submit(
        self, host: str, index: int, worker: str, command: list[str], timeout_s: float | None
    ) -> _Pending:
        future = self._client.submit(
            _task(), command, timeout_s, workers=[worker], allow_other_workers=False, pure=False
        )
        deadline = None if timeout_s is None else time.monotonic() + timeout_s + _GRACE_S
        return _Pending(host, index, worker, future, deadline, tried=[worker])

    def _ended(self, task: _Pending, timeout_s: float | None) -> TaskResult | None:
        """Return how a task ended, or ``None`` while it runs."""
        now = time.monotonic()
        if task.future.done():
            return _result(task.future)
        if task.worker in self._workers():
            task.gone_since_s = None
        elif task.gone_since_s is None:
            task.gone_since_s = now
        elif now - task.gone_since_s > _GONE_S:
            task.future.cancel()
            return TaskResult(None, "", f"its worker {task.worker} died")
        if task.deadline_s is not None and now > task.deadline_s:
            task.future.cancel()
            return TaskResult(None, "", f"did not end within {timeout_s:g} s")
        return None


def _result(future: Any) -> TaskResult:
    error = future.exception()
    if error is None:
        return TaskResult(**future.result())
    if type(error).__name__ == "KilledWorker":
        return TaskResult(None, "", "its worker died")
    return TaskResult(None, "", f"did not run: {type(error).__name__}: {error}")


def read_task(host: str, ended: TaskResult) -> MachineReading | Problem:
    """Return what the command on *host* says, or what went wrong."""
    last = (ended.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
    if ended.code is None:
        kind = "timeout" if "did not end" in last else "lost" if "died" in last else "failed"
        return Problem(host, kind, last)
    try:
        document = msgspec.json.decode(ended.stdout.encode())
    except (msgspec.DecodeError, RecursionError):
        if "No module named" in ended.stderr and "vmtool" in ended.stderr:
            return Problem(host, "failed", "vmtool is not installed for the worker's Python")
        return Problem(host, "failed", f"exit code {ended.code}: {last}")
    if not isinstance(document, dict):
        return Problem(host, "other", "is not a JSON object")
    version = document.get("vmtool")
    if version != __version__:
        return Problem(host, "version", f"vmtool {version} there, {__version__} here")
    try:
        reading = read_document(document, host, host)
    except ValueError as error:
        return Problem(host, "other", str(error))
    # Workers on one machine may all say its name.
    return replace(reading, host=host)
