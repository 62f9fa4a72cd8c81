"""What Linux reports about another process, read from ``/proc/PID`` and its control group.

The directory of the process is kept open: the kernel never shows another process through it, so
that a number that is used again cannot be mistaken for the process that was looked at. Reading
``smaps`` and ``numa_maps`` holds the process's memory map meanwhile, so both are read seldom.
Sources: proc_pid_status(5), proc_pid_stat(5), proc_pid_maps(5), proc_pid_smaps(5).
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"  # before the imports, so that mypy skips them elsewhere

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool.inspect.areas_and_reservations import (
    HUGE_FIELDS,
    Detail,
    ProcessGoneError,
    parse_maps,
    parse_numa_maps,
    parse_smaps,
)
from vmtool.machine.cgroups import read_cgroups, read_level
from vmtool.machine.kernel_files import KernelFiles, parse_int, parse_pairs
from vmtool.memory.cgroup_paths_and_hugetlb import parse_limit
from vmtool.results.inspect import LimitUse, ProcessCgroup, ProcessIdentity, Sample, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.machine.cgroups import CgroupFacts, CgroupLevel

#: The names of ``/proc/PID/limits`` that matter here: the limit, and the counter that it bounds.
_LIMITS: Final = {
    "Max address space": ("RLIMIT_AS", "address_space_bytes"),
    "Max data size": ("RLIMIT_DATA", "charge_bytes"),
    "Max locked memory": ("RLIMIT_MEMLOCK", "locked_bytes"),
    "Max open files": ("RLIMIT_NOFILE", "descriptors"),
    "Max processes": ("RLIMIT_NPROC", "user_tasks"),
}
#: The capabilities that lift a limit: CAP_IPC_LOCK; CAP_SYS_ADMIN and CAP_SYS_RESOURCE
#: (include/uapi/linux/capability.h).
_EXEMPT: Final = {"RLIMIT_MEMLOCK": 1 << 14, "RLIMIT_NPROC": 1 << 21 | 1 << 24}
#: Fields of ``stat``, counted from the state.
_FIELD_PARENT, _FIELD_FLAGS, _FIELD_THREADS = 1, 6, 17
_FIELD_MINOR, _FIELD_MAJOR, _FIELD_USER, _FIELD_SYSTEM, _FIELD_START = 7, 9, 11, 12, 19
_FIELD_CODE, _FIELD_STACK, _FIELD_HEAP = 23, 25, 44
_PF_KTHREAD, _PF_EXITING = 0x200000, 0x4  # include/linux/sched.h
_ENDED: Final = frozenset("ZX")


class LinuxProcess:
    """One process, as long as it lives.

    Args:
        pid: Its number.
        proc: Where the proc filesystem is mounted.

    Raises:
        ProcessGoneError: If there is no such process.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self.pid = pid
        self.proc = proc
        self.unavailable: dict[str, Unavailable] = {}
        try:
            self._directory = os.open(f"{proc}/{pid}", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ProcessGoneError from error
        self._files = KernelFiles()
        self._ticks = os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Close the directory."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _read(self, name: str) -> bytes:
        """Return the content of a file of the process.

        Raises:
            ProcessGoneError: If the process has ended.
            PermissionError: If it may not be read.
            FileNotFoundError: If this kernel has no such file.
        """
        try:
            file = os.open(name, os.O_RDONLY, dir_fd=self._directory)
        except FileNotFoundError as error:
            try:
                os.close(os.open("stat", os.O_RDONLY, dir_fd=self._directory))
            except OSError:
                raise ProcessGoneError from error
            raise
        except ProcessLookupError as error:
            raise ProcessGoneError from error
        try:
            pieces = []
            while piece := os.read(file, 1 << 20):
                pieces.append(piece)
        except ProcessLookupError as error:
            raise ProcessGoneError from error
        finally:
            os.close(file)
        return b"".join(pieces)

    def _try(self, name: str, what: str) -> bytes | None:
        """Return the content of a file, or ``None`` after noting why it is not available."""
        try:
            return self._read(name)
        except PermissionError as error:
            reason, detail = "permission", f"open({self.proc}/{self.pid}/{name}): {_symbol(error)}"
        except FileNotFoundError:
            reason, detail = "kernel", f"{self.proc}/{self.pid}/{name}"
        except OSError as error:
            reason, detail = "kernel", f"read({self.proc}/{self.pid}/{name}): {_symbol(error)}"
        self.unavailable.setdefault(what, Unavailable(what, reason, detail))
        return None

    def stat(self) -> tuple[str, str, list[int]]:
        """Return the name, the state, and the numbers of ``stat`` after the state.

        Raises:
            ProcessGoneError: If the process has ended, is a zombie, or its memory is gone.
        """
        name, state, numbers = self._stat()
        if state in _ENDED or numbers[_FIELD_FLAGS - 1] & _PF_EXITING:
            raise ProcessGoneError(_why_ended(self.proc, state, numbers))
        return name, state, numbers

    def _stat(self) -> tuple[str, str, list[int]]:
        text = self._read("stat").decode("utf-8", "replace")
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        return name, fields[0], [int(field) for field in fields[1:]]

    def is_kernel_thread(self) -> bool:
        """Return whether it is a thread of the kernel, which has no memory map."""
        return bool(self.stat()[2][_FIELD_FLAGS - 1] & _PF_KTHREAD)

    def started_ns(self) -> int:
        """Return when the process started, in nanoseconds since 1970."""
        ticks = self.stat()[2][_FIELD_START - 1]
        boot = parse_pairs(KernelFiles().read(f"{self.proc}/stat")).get("btime", 0)
        return boot * 10**9 + ticks * 10**9 // self._ticks

    def command(self) -> tuple[str, ...]:
        """Return the command line, empty where it may not be read."""
        text = self._try("cmdline", "command line") or b""
        return tuple(part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0"))

    def counters(self, at_ns: int) -> Sample:
        """Return the counters of this moment, without what needs ``maps`` or ``smaps``."""
        status = _parse_status(self._read("status"))
        _, _, numbers = self.stat()

        def kib(name: str) -> int | None:
            value = status.get(name)
            return None if value is None else int(value.split()[0]) << 10

        data, stack = kib("VmData"), kib("VmStk")
        user, system = numbers[_FIELD_USER - 1], numbers[_FIELD_SYSTEM - 1]
        return Sample(
            at_ns=at_ns,
            address_space_bytes=kib("VmSize"),
            charge_bytes=None if data is None else data + (stack or 0),
            resident_bytes=kib("VmRSS"),
            anonymous_bytes=kib("RssAnon"),
            file_bytes=kib("RssFile"),
            shared_bytes=kib("RssShmem"),
            swapped_bytes=kib("VmSwap"),
            page_table_bytes=kib("VmPTE"),
            locked_bytes=kib("VmLck"),
            pinned_bytes=kib("VmPin"),
            hugetlb_bytes=kib("HugetlbPages"),
            minor_faults=numbers[_FIELD_MINOR - 1],
            major_faults=numbers[_FIELD_MAJOR - 1],
            threads=parse_int(status.get("Threads")),
            descriptors=self._descriptors(),
            cpu_ns=(user + system) * 10**9 // self._ticks,
        )

    def _descriptors(self) -> int | None:
        try:
            # Linux 6.2 and newer: the size of the directory is the number of descriptors.
            size = os.stat("fd", dir_fd=self._directory).st_size
            if size:
                return size
            directory = os.open("fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._directory)
        except PermissionError as error:
            detail = f"open({self.proc}/{self.pid}/fd): {_symbol(error)}"
            self.unavailable.setdefault(
                "descriptors", Unavailable("descriptors", "permission", detail)
            )
            return None
        except OSError:
            return None
        try:
            return len(os.listdir(directory))
        except OSError:
            return None
        finally:
            os.close(directory)

    def areas(self) -> Detail | None:
        """Return the memory areas without their residency, or ``None`` if they may not be read."""
        return self._areas("maps")

    def count_areas(self) -> int | None:
        text = self._try("maps", "reservations")
        return None if text is None else text.count(b"\n") - text.count(b"[vsyscall]")

    def areas_with_residency(self, *, nodes: bool = False) -> Detail | None:
        """Return the memory areas with their residency; the process's map is locked meanwhile."""
        detail = self._areas("smaps")
        if detail is None or not nodes:
            return detail
        text = self._try("numa_maps", "NUMA nodes")
        if text is None:
            return detail
        return Detail(
            detail.areas, detail.took_ns, detail.at_ns, complete=True, nodes=parse_numa_maps(text)
        )

    def _areas(self, name: str) -> Detail | None:
        began = time.monotonic_ns()
        text = self._try(name, "reservations")
        if text is None:
            return None
        if not text:  # every process has areas until its memory is taken down
            raise ProcessGoneError
        complete = name == "smaps"
        found = parse_smaps(text) if complete else parse_maps(text)
        ended = time.monotonic_ns()
        return Detail(tuple(found), ended - began, ended, complete)

    def huge_bytes(self) -> int | None:
        """Return the memory in transparent huge pages (``smaps_rollup``)."""
        text = self._try("smaps_rollup", "transparent huge pages")
        if text is None:
            return None
        lines = _parse_status(text)
        values = [int(lines[name].split()[0]) << 10 for name in HUGE_FIELDS if name in lines]
        return sum(values) if values else None

    def rlimits(self) -> dict[str, tuple[int | None, int | None]]:
        """Return soft and hard limits by the name that ``/proc/PID/limits`` uses."""
        text = self._try("limits", "limits") or b""
        found = {}
        for line in text.decode("ascii", "replace").splitlines()[1:]:
            soft, hard = line[26:47].strip(), line[47:68].strip()
            found[line[:26].strip()] = (parse_int(soft), parse_int(hard))
        return found

    def oom_score(self) -> int | None:
        """Return the score by which the OOM killer chooses."""
        return parse_int((self._try("oom_score", "OOM score") or b"").decode() or None)

    def status(self) -> dict[str, str]:
        """Return the lines of ``status``."""
        return _parse_status(self._read("status"))

    def identity(self) -> ProcessIdentity:
        name = self.stat()[0]
        status = self.status()
        numbers = status.get("NSpid", "").split()
        return ProcessIdentity(
            pid=self.pid,
            name=name,
            command=self.command(),
            user=_user_name(int(status.get("Uid", "0").split()[0])),
            started_ns=self.started_ns(),
            own_pid_namespace=len(numbers) > 1 if numbers else None,
        )

    def program(self) -> tuple[object, ...] | None:
        # The file alone would miss a program that starts itself anew, and its path changes when
        # an upgrade replaces it. The addresses are new with every exec, as they are random.
        numbers = self.stat()[2]
        addresses = [numbers[field - 1] for field in (_FIELD_CODE, _FIELD_STACK, _FIELD_HEAP)]
        try:
            file = os.stat("exe", dir_fd=self._directory)
        except OSError:
            self.stat()  # its link is gone too once it is ending
            return None
        return (file.st_dev, file.st_ino, *addresses)

    def capabilities(self, status: dict[str, str]) -> int:
        """Return the set of capabilities that it has over the machine, as a mask.

        Args:
            status: The lines of its ``status``.
        """
        try:
            # In a user namespace of its own they hold for nothing outside.
            outside = self._read("uid_map").split() == [b"0", b"0", b"4294967295"]
            return int(status.get("CapEff", "0"), 16) if outside else 0
        except (OSError, ValueError):
            return 0

    def state(self) -> str:
        return self.stat()[1]

    def huge_disabled(self) -> bool:
        return self.status().get("THP_enabled") == "0"

    def stack_bytes(self) -> int | None:
        return self.rlimits().get("Max stack size", (None, None))[0]

    def limits(self, counters: Sample, group: ProcessCgroup | None) -> tuple[LimitUse, ...]:
        return _limit_uses(self, counters, group)

    def group(self) -> ProcessCgroup | None:
        """Return the control group that limits it: its memory, or only its tasks."""
        return describe_group(read_cgroups(self._files, str(self.pid)))

    def refreshed(self, group: ProcessCgroup) -> ProcessCgroup:
        """Return what is charged to *group* now, and what became of its limits."""
        level = read_level(self._files, group.version, group.path)
        found = group if level is None else _group_use(level)
        directory = group.pids_path
        if directory is None:
            return found
        return replace(
            found,
            pids=parse_int(self._files.read(f"{directory}/pids.current")),
            pids_max=parse_limit(self._files.read(f"{directory}/pids.max")),
            pids_path=directory,
        )

    def machine_kills(self) -> int | None:
        return parse_pairs(self._files.read(f"{self.proc}/vmstat")).get("oom_kill")

    def children(self) -> tuple[int, ...]:
        """Return the numbers of all descendants."""
        parents: dict[int, list[int]] = {}
        for name in os.listdir(self.proc):
            if not name.isdigit():
                continue
            try:
                with open(f"{self.proc}/{name}/stat", "rb") as file:
                    text = file.read()
                parents.setdefault(int(text[text.rindex(b")") + 4 :].split()[0]), []).append(
                    int(name)
                )
            except (OSError, ValueError):
                continue  # it ended meanwhile
        found: list[int] = []
        waiting = [self.pid]
        while waiting:
            children = parents.get(waiting.pop(), [])
            found += children
            waiting += children
        return tuple(sorted(found))


def user_tasks(uid: int, proc: str = "/proc") -> int | None:
    """Return how many tasks the user *uid* has, which ``RLIMIT_NPROC`` bounds."""
    count = 0
    try:
        names = os.listdir(proc)
    except OSError:
        return None
    for name in names:
        if not name.isdigit():
            continue
        try:
            if os.stat(f"{proc}/{name}").st_uid != uid:
                continue
            with open(f"{proc}/{name}/stat", "rb") as file:
                text = file.read()
            count += int(text[text.rindex(b")") + 2 :].split()[17])  # num_threads
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
    return count


_OUTSIDE: Final = (
    "more may exist outside this PID namespace, where they cannot be seen; RLIMIT_NPROC counts them"
)
#: The inode of the first PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_FIRST_NAMESPACE: Final = 0xEFFFFFFC


def _sees_all_processes(proc: str) -> bool:
    try:
        return os.stat(f"{proc}/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return True  # a kernel without namespaces


def _limit_uses(
    process: LinuxProcess, counters: Sample, group: ProcessCgroup | None
) -> tuple[LimitUse, ...]:
    """Return every limit of *process* that is known, with what is used of it."""
    files = KernelFiles()
    found = []
    status = process.status()
    uid = int(status.get("Uid", "0").split()[0])
    capable = process.capabilities(status)
    for name, (soft, hard) in process.rlimits().items():
        if name not in _LIMITS:
            continue
        limit, counter = _LIMITS[name]
        # No limit to who has one of these: fork(2), EAGAIN; mlock(2), EPERM.
        if capable & _EXEMPT.get(limit, 0) or (limit == "RLIMIT_NPROC" and uid == 0):
            continue
        if limit == "RLIMIT_NPROC":
            used = user_tasks(uid, process.proc) if soft is not None else None
            if soft is not None and not _sees_all_processes(process.proc):
                note = Unavailable("tasks of its user", "namespace", _OUTSIDE)
                process.unavailable.setdefault(note.what, note)
            found.append(LimitUse(limit, counter, used, soft, hard, "user"))
            continue
        used = getattr(counters, counter)
        if limit == "RLIMIT_DATA" and "VmData" in status:  # the charge without the stack
            used = int(status["VmData"].split()[0]) << 10
        found.append(LimitUse(limit, counter, used, soft, hard, "process"))
    path = f"{process.proc}/sys/vm/max_map_count"
    most = parse_int(files.read(path))
    found.append(LimitUse("vm.max_map_count", "areas", counters.areas, most, None, "machine", path))
    meminfo = _parse_status((files.read(f"{process.proc}/meminfo") or "").encode())
    mode = parse_int(files.read(f"{process.proc}/sys/vm/overcommit_memory"))
    if mode == 2:
        limit_kib = meminfo.get("CommitLimit", "").split()[:1]
        used_kib = meminfo.get("Committed_AS", "").split()[:1]
        found.append(
            LimitUse(
                "CommitLimit",
                "charge_bytes",
                int(used_kib[0]) << 10 if used_kib else None,
                int(limit_kib[0]) << 10 if limit_kib else None,
                None,
                "machine",
                f"{process.proc}/sys/vm/overcommit_ratio",
            )
        )
    if group is not None:
        used = group.without_cache_bytes
        limit = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        place = ("group", f"{group.path}/{limit}")
        found.append(LimitUse(limit, "group_used_bytes", used, group.max_bytes, None, *place))
        if group.high_bytes is not None:
            place = ("group", f"{group.path}/memory.high")
            high = group.high_bytes
            found.append(LimitUse("memory.high", "group_used_bytes", used, high, None, *place))
        if group.pids_max is not None:
            place = ("group", f"{group.pids_path}/pids.max")
            found.append(
                LimitUse("pids.max", "group_tasks", group.pids, group.pids_max, None, *place)
            )
    return tuple(found)


def describe_group(found: CgroupFacts) -> ProcessCgroup | None:
    """Return the group of a process that limits it most, its own where none is limited."""
    tasks = found.tasks
    if found.levels:
        # The tightest limit may be set anywhere on the way to the root.
        use = _group_use(found.tightest or found.levels[0])
    elif tasks is not None:  # a group without the controller of memory
        use = ProcessCgroup(tasks.path, version=2)
    else:
        return None
    if tasks is None:
        return use
    return replace(use, pids=tasks.used, pids_max=tasks.limit, pids_path=tasks.path)


def _group_use(level: CgroupLevel) -> ProcessCgroup:
    pressure = level.pressure
    events = {"max": level.limit_hits, "high": level.high_hits, "oom_kill": level.oom_kills}
    return ProcessCgroup(
        path=level.path,
        version=level.version,
        current_bytes=level.used_bytes,
        high_bytes=level.high_bytes,
        max_bytes=level.limit_bytes,
        reclaimable_bytes=level.reclaimable_bytes,
        events={name: count for name, count in events.items() if count is not None} or None,
        pressure_some_percent=None if pressure is None else pressure.some_percent,
        pressure_full_percent=None if pressure is None else pressure.full_percent,
    )


def hidepid(proc: str = "/proc") -> str | None:
    """Return the mount option ``hidepid`` of *proc*, if it hides processes of other users.

    Since Linux 5.8 it may be a word: proc(5).
    """
    found = None
    for line in (KernelFiles().read("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4:5] != [proc]:
            continue
        found = None  # a later mount is above the ones before
        for option in after.split()[-1].split(","):
            name, _, value = option.partition("=")
            if name == "hidepid" and value not in {"0", "off"}:
                found = value
    return found


def _why_ended(proc: str, state: str, numbers: Sequence[int]) -> str:
    """Return why nothing can be read of a process that is still listed.

    Args:
        proc: Where the proc filesystem is mounted.
        state: The letter of its state.
        numbers: Of its ``stat``, after the state.
    """
    if state not in _ENDED:
        return "it is exiting, and its memory is being freed"
    if numbers[_FIELD_THREADS - 1] > 1:
        return (
            "its main thread has ended but others still run: give the ID of one of them "
            "(/proc/PID/task lists them)"
        )
    parent = numbers[_FIELD_PARENT - 1]
    try:
        with open(f"{proc}/{parent}/comm", "rb") as file:
            name = file.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        name = "its parent"
    return f"it has ended (a zombie), and {name} ({parent}) has not read its exit code yet"


def _parse_status(text: bytes) -> dict[str, str]:
    found = {}
    for line in text.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value.strip()
    return found


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _symbol(error: OSError) -> str:
    import errno

    number = error.errno or 0
    return f"{errno.errorcode.get(number, 'error')} ({number})"
