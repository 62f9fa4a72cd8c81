"""The process to inspect: choosing it, and what the platform and NVML report about it."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import CallError, UsageError, printable
from vmtool.inspect.areas_and_reservations import ProcessGoneError
from vmtool.machine.nvml import read_nvml
from vmtool.results.inspect import ChildProcess, ProcessDevice, ProcessIdentity, Unavailable

if TYPE_CHECKING:
    from vmtool.inspect.areas_and_reservations import Detail
    from vmtool.machine.nvml import ManagedDevice, NvmlReading
    from vmtool.results.inspect import LimitUse, ProcessCgroup, Sample

_SHOWN: Final = 10
#: Why no process is found by the PID that it has for vmtool.
OTHER_PROC: Final = "/proc belongs to a different PID namespace from vmtool's"
_NOT_LISTED: Final = (
    "NVML does not list this process. In a container without --pid=host it never does, because NVML "
    "uses the host's PIDs: run vmtool on the host to see its memory on a GPU"
)


class ProcessView(Protocol):
    """A process as the platform shows it. Every method may raise ``ProcessGoneError``."""

    pid: int
    unavailable: dict[str, Unavailable]

    def counters(self, at_ns: int) -> Sample:
        """Return the counters of this moment."""

    def areas(self) -> Detail | None:
        """Return the memory areas, without residency where that is cheaper."""

    def count_areas(self) -> int | None:
        """Return how many memory areas there are: cheaper than all of them."""

    def areas_with_residency(self, *, nodes: bool = False) -> Detail | None:
        """Return the memory areas with their residency."""

    def huge_bytes(self) -> int | None:
        """Return the memory in transparent huge pages."""

    def program(self) -> tuple[object, ...] | None:
        """Return a value that changes with each exec; ``None`` if it may not be read."""

    def group(self) -> ProcessCgroup | None:
        """Return its control group."""

    def refreshed(self, group: ProcessCgroup) -> ProcessCgroup:
        """Return *group* with its figures of now."""

    def machine_kills(self) -> int | None:
        """Return how many processes of the machine its OOM killer has ended."""

    def limits(self, counters: Sample, group: ProcessCgroup | None) -> tuple[LimitUse, ...]:
        """Return every limit that is known, with what is used of it."""

    def identity(self) -> ProcessIdentity:
        """Return which process it is."""

    def children(self) -> tuple[int, ...]:
        """Return the numbers of all its descendants."""

    def oom_score(self) -> int | None:
        """Return the score by which the OOM killer chooses."""

    def state(self) -> str:
        """Return the letter of its state, such as ``S``; nothing where there is none."""

    def huge_disabled(self) -> bool:
        """Return whether it may have no transparent huge pages."""

    def stack_bytes(self) -> int | None:
        """Return the size of a thread's stack: its soft ``RLIMIT_STACK``."""

    def close(self) -> None:
        """Give back what keeps the process open."""


def open_process(pid: int) -> ProcessView:
    """Return the process with the number *pid*.

    Raises:
        CallError: If there is none, or it is hidden.
    """
    try:
        if sys.platform == "linux":
            from vmtool.inspect.linux_process import LinuxProcess

            target = LinuxProcess(pid)
            unusable = True
            try:
                unusable = target.is_kernel_thread()
            finally:  # also of a zombie, of which a watch may meet many
                if unusable:
                    target.close()
            if not unusable:
                return target
        else:
            from vmtool.inspect.psutil_process import PortableProcess

            return PortableProcess(pid)
    except ProcessGoneError as error:
        if str(error):
            hint = "give the PID of a running process: `ps -e` lists them"
            raise _cannot_read(pid, str(error), hint) from error
        hint = (
            "`ps -e` lists the processes; in a container, use the PID that it has in the container"
        )
        if shows_other_pids():
            hint = f"{OTHER_PROC}: use a PID that `ps -e` lists, not one from `$!`"
        raise CallError(
            "open",
            f"process {pid}",
            code=errno.ESRCH,
            symbol="ESRCH",
            detail="no such process",
            hint=_hint_hidden() or hint,
        ) from error
    except PermissionError as error:
        raise CallError(
            "open",
            f"process {pid}",
            code=error.errno or errno.EPERM,
            symbol=errno.errorcode.get(error.errno or errno.EPERM, ""),
            detail=error.strerror or "",
            hint=_hint_hidden() or "run vmtool as root",
        ) from error
    raise _cannot_read(
        pid,
        "it is a kernel thread, which has no memory of its own",
        "/proc/meminfo shows what the kernel uses",
    )


def shows_other_pids() -> bool:
    """Return whether the PIDs in ``/proc`` are not those that vmtool sees.

    That is so after ``unshare --pid`` without ``--mount-proc``.
    """
    try:
        return sys.platform == "linux" and os.readlink("/proc/self") != str(os.getpid())
    except OSError:
        return False  # there is no /proc, which is reported elsewhere


def _hint_hidden() -> str | None:
    """Return what to do where the system hides the processes of other users."""
    if sys.platform != "linux":
        return None
    else:
        from vmtool.inspect.linux_process import hidepid

        value = hidepid()
        # The group does not help where only what may be traced is shown (4).
        group = (
            "" if value in {"4", "ptraceable"} else ", or in the group that its option gid= names"
        )
        return value and (
            f"/proc is mounted with hidepid={value}, which hides the processes of other users: run "
            f"vmtool as root{group}"
        )


def _cannot_read(pid: int, detail: str, hint: str) -> CallError:
    return CallError(
        "read", f"process {pid}", code=errno.ESRCH, symbol="ESRCH", detail=detail, hint=hint
    )


def find_by_name(name: str) -> int:
    """Return the number of the one process that is called *name*.

    Args:
        name: The name of its program, or a part of its command line.

    Raises:
        UsageError: If there is none or several; the hint lists them.
    """
    import psutil

    exact, partly = [], []
    own = {os.getpid(), os.getppid()}
    above = _ancestors()  # such as timeout or sudo: the name is in their arguments as well
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.pid in own:
            continue
        words = process.info["cmdline"] or []
        if process.info["name"] == name or (words and os.path.basename(words[0]) == name):
            exact.append(process)
        elif process.pid not in above and any(name in word for word in words):
            partly.append(process)
    found = exact or partly
    if not found:
        raise UsageError(f"--name {name}: no process has that name", hint="`ps -e` lists them")
    if len(found) > 1:
        lines = [
            f"{process.pid}  {printable(' '.join(process.info['cmdline'] or [process.info['name']]))[:60]}"
            for process in found[:_SHOWN]
        ]
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UsageError(
            f"--name {name}: {len(found)} processes have that name",
            hint="give the PID of one:\n  " + "\n  ".join(lines) + more,
        )
    return int(found[0].pid)


def _ancestors() -> set[int]:
    import psutil

    try:
        return {process.pid for process in psutil.Process().parents()}
    except psutil.Error:  # as where /proc numbers processes otherwise
        return set()


def describe_children(pids: tuple[int, ...]) -> tuple[ChildProcess, ...]:
    """Return what can be read of the processes *pids*, the largest first."""
    found = []
    for pid in pids:
        try:
            target = open_process(pid)
        except CallError:
            continue  # it ended meanwhile
        try:
            counters = target.counters(0)
            name = target.identity().name
        except (ProcessGoneError, OSError):
            continue
        finally:
            target.close()
        found.append(
            ChildProcess(
                pid, name, counters.resident_bytes, counters.swapped_bytes, counters.threads
            )
        )
    return tuple(sorted(found, key=lambda child: -(child.resident_bytes or 0)))


def read_devices(
    pids: tuple[int, ...], reading: NvmlReading | None = None
) -> tuple[tuple[ProcessDevice, ...], Unavailable | None]:
    """Return every device that one of *pids* may have memory on, and what is not known of that.

    In a container NVML lists no process, or the host's numbers, where *pids* are not found: that none
    is listed does not prove that nothing is held.

    Args:
        pids: The process and those of its descendants that count as its own.
        reading: What NVML reported; it is queried if this is omitted.
    """
    nvml = read_nvml() if reading is None else reading
    if nvml.absent is not None:
        return (), Unavailable("devices", "platform", nvml.absent)
    found = []
    for device in nvml.devices:
        if device.processes is not None and not _listed(device, pids):
            continue
        own = [used for pid in pids if (used := device.bytes_of(pid)) is not None]
        found.append(
            ProcessDevice(
                device=device.index,
                name=device.name,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                own_bytes=sum(own) if len(own) == len(pids) else None,
                others=device.others(*pids),
            )
        )
    if len(found) < len(nvml.devices) and not any(_listed(each, pids) for each in nvml.devices):
        return tuple(found), Unavailable("devices", "not listed", _NOT_LISTED)
    return tuple(found), None


def _listed(device: ManagedDevice, pids: tuple[int, ...]) -> bool:
    return any(process.pid in pids for process in device.processes or ())
