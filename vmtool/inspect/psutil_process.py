"""What psutil reports about another process, for the systems without ``/proc``: macOS and Windows.

On Windows the memory areas come from ``VirtualQueryEx``. macOS shows an unprivileged process
nothing about the areas of another one.
"""

from __future__ import annotations

import os
import sys
import time

import psutil

from vmtool.inspect.areas_and_reservations import Detail, ProcessGoneError
from vmtool.results.inspect import LimitUse, ProcessCgroup, ProcessIdentity, Sample, Unavailable


class PortableProcess:
    """One process, as long as it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.unavailable: dict[str, Unavailable] = {}
        try:
            self._process = psutil.Process(pid)
            self._started = self._process.create_time()
        except psutil.NoSuchProcess as error:
            raise ProcessGoneError from error
        except psutil.AccessDenied as error:
            self._deny("process", error)

    def close(self) -> None:
        """Nothing is kept open."""

    def _deny(self, what: str, error: Exception) -> None:
        detail = f"{type(error).__name__} from psutil"
        self.unavailable.setdefault(what, Unavailable(what, "permission", detail))

    def counters(self, at_ns: int) -> Sample:
        if not self._process.is_running():  # psutil compares the start time, too
            raise ProcessGoneError
        try:
            with self._process.oneshot():
                memory = self._process.memory_info()
                cpu = self._process.cpu_times()
                threads = self._process.num_threads()
                # The stubs of psutil have each of the two on its own platform only.
                name = "num_handles" if sys.platform == "win32" else "num_fds"
                descriptors: int = getattr(self._process, name)()
        except psutil.NoSuchProcess as error:
            raise ProcessGoneError from error
        except psutil.AccessDenied as error:
            self._deny("counters", error)
            return Sample(at_ns)
        faults = getattr(memory, "num_page_faults", None)
        minor = getattr(memory, "pfaults", None)
        return Sample(
            at_ns=at_ns,
            # On Windows vms is the commit charge of the process (PagefileUsage).
            address_space_bytes=None if sys.platform == "win32" else memory.vms,
            charge_bytes=memory.vms if sys.platform == "win32" else None,
            resident_bytes=memory.rss,
            minor_faults=faults if minor is None else minor,
            major_faults=getattr(memory, "pageins", None),
            threads=threads,
            descriptors=descriptors,
            cpu_ns=round((cpu.user + cpu.system) * 1e9),
        )

    def areas(self) -> Detail | None:
        return self._areas(residency=False)

    def count_areas(self) -> int | None:
        detail = self.areas()
        return None if detail is None else len(detail.areas)

    def areas_with_residency(self, *, nodes: bool = False) -> Detail | None:  # noqa: ARG002
        return self._areas(residency=True)

    def _areas(self, *, residency: bool) -> Detail | None:
        if sys.platform == "win32":
            from vmtool.inspect.windows_process import read_areas

            began = time.monotonic_ns()
            try:
                found, complete = read_areas(self.pid, residency=residency)
            except OSError as error:
                self._deny("reservations", error)
                return None
            ended = time.monotonic_ns()
            return Detail(tuple(found), ended - began, ended, complete)
        else:
            reason = (
                "`vmmap PID` shows them to the owner of the process, but may suspend it meanwhile"
            )
            self.unavailable.setdefault(
                "reservations", Unavailable("reservations", "platform", reason)
            )
            return None

    def huge_bytes(self) -> int | None:
        return None

    def program(self) -> tuple[object, ...] | None:
        try:
            return (self._process.exe(),)
        except psutil.NoSuchProcess as error:
            raise ProcessGoneError from error
        except (psutil.Error, OSError):
            return None

    def group(self) -> ProcessCgroup | None:
        return None

    def refreshed(self, group: ProcessCgroup) -> ProcessCgroup:
        return group

    def machine_kills(self) -> int | None:
        return None

    def limits(
        self,
        counters: Sample,
        group: ProcessCgroup | None,  # noqa: ARG002
    ) -> tuple[LimitUse, ...]:
        if sys.platform != "win32":
            return ()
        else:
            from vmtool.inspect.windows_process import read_limits

            try:
                own_job = self._process.ppid() == os.getpid()
                found, hidden = read_limits(self.pid, counters, own_job=own_job)
            except (OSError, psutil.Error) as error:
                self._deny("limits", error)
                return ()
            if hidden:
                reason = (
                    "it is in a job object, whose limits Windows shows only to processes in the "
                    "same object"
                )
                self.unavailable["job limits"] = Unavailable("job limits", "platform", reason)
            return tuple(found)

    def identity(self) -> ProcessIdentity:
        try:
            with self._process.oneshot():
                name = self._process.name()
                try:
                    command, user = tuple(self._process.cmdline()), self._process.username()
                except psutil.AccessDenied as error:
                    self._deny("command line", error)
                    command, user = (), None
        except psutil.NoSuchProcess as error:
            raise ProcessGoneError from error
        return ProcessIdentity(self.pid, name, command, user, started_ns=round(self._started * 1e9))

    def children(self) -> tuple[int, ...]:
        try:
            return tuple(sorted(child.pid for child in self._process.children(recursive=True)))
        except psutil.Error:
            return ()

    def oom_score(self) -> int | None:
        return None

    def state(self) -> str:
        try:
            return "T" if self._process.status() == psutil.STATUS_STOPPED else ""
        except psutil.Error:
            return ""

    def huge_disabled(self) -> bool:
        return False

    def stack_bytes(self) -> int | None:
        return None
