"""Trials of sharing device memory: with each kind of handle, with another process, and with peers.

``python -m vmtool.probes.sharing SOCKET ORDINAL NBYTES`` is the process that exports.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack, contextmanager, suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import CallError, UnavailableError, VmtoolError
from vmtool.machine.device_facts import access_costs
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.children import end_child, prepare_child, start_child, wait_killed
from vmtool.memory.cuda import driver as cu
from vmtool.memory.cuda import errors_and_diagnosis
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.devices import devices
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.results.granularity import HandleTrial, PeerTrial, SharingTrial

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

_PATTERN: Final = bytes(range(256)) * 16
_ANSWER: Final = _PATTERN[::-1]
_TIMEOUT_S: Final = 60
_EXPORT: Final = "cuMemExportToShareableHandle"
#: What says that a kind of handle is not to be had here; any other code is a failure of the driver.
_REFUSALS: Final = frozenset(
    {errors_and_diagnosis.NOT_PERMITTED, errors_and_diagnosis.NOT_SUPPORTED}
)
#: A driver may also not know the kind of handle, or not offer it on this device.
_CREATION_REFUSALS: Final = _REFUSALS | {
    errors_and_diagnosis.INVALID_VALUE,
    errors_and_diagnosis.INVALID_DEVICE,
}
#: Kinds of handle that can be exported, by the name that results use.
_HANDLES: Final = {"posix-fd": cu.HANDLE_POSIX_FD, "fabric": cu.HANDLE_FABRIC}


def try_handles(backing: CudaBacking) -> tuple[HandleTrial, ...]:
    """Create one handle of each kind, and export those that can be.

    The attribute of a device says what its hardware offers, not what this machine is set up for: a
    fabric handle needs an IMEX channel as well.

    Raises:
        CudaError: If a call fails for another reason than that this kind is not supported or permitted.
    """
    with _first_failure():
        return tuple(_try_handle(backing, *kind) for kind in (("none", 0), *_HANDLES.items()))


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the first call that failed, whatever fails while it is undone."""
    try:
        yield
    except VmtoolError as error:
        first, link = error, error.__context__
        while link is not None:
            if isinstance(link, VmtoolError):
                first = link
            link = link.__context__
        if first is error:
            raise
        raise first from None


def _try_handle(backing: CudaBacking, name: str, number: int) -> HandleTrial:
    context = backing.context
    properties = context.driver.allocation_properties(context.info.ordinal, handle_types=number)
    nbytes = backing.units.reserve_bytes
    try:
        handle = context.call("cuMemCreate", nbytes, properties, 0)
    except CudaError as error:
        return _refused(name, error, _CREATION_REFUSALS, created=False)
    try:
        if not number:
            return HandleTrial(name, created=True, exported=None)
        shared = context.call(_EXPORT, handle, context.driver.handle_type(number), 0)
        if number == cu.HANDLE_POSIX_FD and sys.platform != "win32":
            os.close(int(shared))
    except CudaError as error:
        return _refused(name, error, _REFUSALS, created=True)
    except UnavailableError as error:  # no such call
        return HandleTrial(name, created=True, exported=None, cause=str(error))
    finally:
        context.call(
            "cuMemRelease", handle
        )  # a failure of it is raised: it says nothing of the kind
    return HandleTrial(name, created=True, exported=True)


def _refused(
    name: str, error: CudaError, refusals: frozenset[int], *, created: bool
) -> HandleTrial:
    if error.code not in refusals:
        raise error
    return HandleTrial(name, created, False if created else None, error.symbol, error.cause)


def share_between_processes(ordinal: int) -> SharingTrial:
    """Let another process export memory of a device, use it here, and let that process die.

    What the driver lacks for it, or an export that it refuses, is the trial's ``error``.

    Raises:
        UnavailableError: If there is no such device, or no way to pass a descriptor here.
        CudaError: If a call fails, here or in the other process: the first that did.
        VmtoolError: If the other process cannot be started, ends early or does not answer.
    """
    if sys.platform == "win32":
        raise UnavailableError("device memory is shared by descriptor on Linux only")
    else:
        backing = open_device(f"cuda:{ordinal}")
        try:
            with _first_failure():
                return _Importer(backing).run()
        except (CudaError, UnavailableError) as error:
            if isinstance(error, CudaError) and not (
                error.call == _EXPORT and error.code in _REFUSALS
            ):
                raise
            return SharingTrial(error=str(error))
        finally:
            with suppress(VmtoolError):
                backing.close()


class _Importer:
    """The side that uses what another process exports."""

    def __init__(self, backing: CudaBacking) -> None:
        self._context = backing.context
        self._nbytes = backing.granularity
        self._steps: dict[str, int] = {}

    def run(self) -> SharingTrial:
        ours, theirs = socket.socketpair()
        with ours, ExitStack() as stack:
            ours.settimeout(_TIMEOUT_S)
            with theirs:
                descriptor = theirs.fileno()
                ordinal = self._context.info.ordinal
                child = start_child(
                    *("vmtool.probes.sharing", str(descriptor), str(ordinal), str(self._nbytes)),
                    descriptors=[descriptor],
                )
            stack.callback(end_child, child)
            return self._use(ours, child, stack)

    def _use(
        self, channel: socket.socket, child: subprocess.Popen[str], stack: ExitStack
    ) -> SharingTrial:
        answer, descriptors = _receive(channel)
        self._steps.update(answer["steps_ns"])
        before = _count_descriptors()
        address = self._import(descriptors[0], stack)
        after = _count_descriptors()
        seen = self._read(address) == _PATTERN
        self._write(address)
        with suppress(OSError):  # it may have ended; receiving says so
            channel.sendall(b"look")
        answer, _ = _receive(channel)
        child.kill()
        wait_killed(child)
        alive = self._is_still(address, _ANSWER)
        return SharingTrial(
            seen=seen,
            written_back=answer["seen"],
            outlives_exporter=alive,
            descriptors=None if before is None or after is None else after - before + 1,
            steps_ns=self._steps,
        )

    def _import(self, descriptor: int, stack: ExitStack) -> int:
        context, nbytes = self._context, self._nbytes
        kind = context.driver.handle_type(cu.HANDLE_POSIX_FD)
        try:
            handle = self._timed("import", "cuMemImportFromShareableHandle", descriptor, kind)
        finally:
            os.close(descriptor)
        stack.callback(self._timed, "release", "cuMemRelease", handle)
        address: int = context.call("cuMemAddressReserve", nbytes, 0, 0, 0)
        stack.callback(context.call, "cuMemAddressFree", address, nbytes)
        self._timed("map", "cuMemMap", address, nbytes, 0, handle, 0)
        stack.callback(self._timed, "unmap", "cuMemUnmap", address, nbytes)
        stack.callback(context.synchronise)
        access = [context.driver.access(context.info.ordinal)]
        self._timed("access", "cuMemSetAccess", address, nbytes, access, 1)
        return address

    def _timed(self, step: str, name: str, *arguments: Any) -> Any:
        began = perf_counter_ns()
        result = self._context.call(name, *arguments)
        self._steps[step] = perf_counter_ns() - began
        return result

    def _read(self, address: int) -> bytes:
        return _read(self._context, address)

    def _is_still(self, address: int, expected: bytes) -> bool:
        try:
            return self._read(address) == expected
        except CudaError as error:
            if (error.call, error.code) != ("cuMemcpyDtoH", errors_and_diagnosis.INVALID_VALUE):
                raise
            return False  # no such address: it went with the exporter

    def _write(self, address: int) -> None:
        _write(self._context, address, _ANSWER)


def _count_descriptors() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one call, no Path objects
    except OSError:
        return None


def _read(context: DeviceContext, address: int) -> bytes:
    into = bytearray(len(_PATTERN))
    with context.current():
        context.call("cuMemcpyDtoH", into, address, len(into))
    return bytes(into)


def _write(context: DeviceContext, address: int, data: bytes) -> None:
    with context.current():
        context.call("cuMemcpyHtoD", address, data, len(data))
        context.call("cuStreamSynchronize", 0)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what the exporter says and the descriptors that came with it.

    Raises:
        VmtoolError: What failed in the exporter, or that it has ended or does not answer.
    """
    if sys.platform == "win32":  # share_between_processes refuses that system
        raise NotImplementedError
    else:
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, 4096, 1)
        except OSError as error:
            raise VmtoolError(f"the exporting process does not answer: {error}") from error
        if not message:
            raise VmtoolError("the exporting process ended before it answered")
        answer: dict[str, Any] = json.loads(message)
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        if "call" in answer:
            raise errors_and_diagnosis.error_class(answer["code"])(**answer)
        if "message" in answer:
            raise VmtoolError(answer.pop("message"), **answer)
        return answer, descriptors


def _as_message(error: VmtoolError) -> bytes:
    """Return *error* as :func:`_receive` raises it in the other process."""
    if isinstance(error, UnavailableError):
        return json.dumps({"unavailable": str(error)}).encode()
    fields = ["cause", "hint"]
    if isinstance(error, CallError):
        fields += ["call", "arguments", "code", "symbol", "detail"]
    said = {name: getattr(error, name) for name in fields}
    return json.dumps(said if "call" in said else said | {"message": str(error)}).encode()


def _send(channel: socket.socket, message: bytes, descriptor: int) -> None:
    if sys.platform == "win32":
        raise NotImplementedError
    else:
        socket.send_fds(channel, [message], [descriptor])


def _export(channel: socket.socket, ordinal: int, nbytes: int) -> None:
    """Create, fill and export one handle, then show whether the importer's bytes arrive."""
    context = DeviceContext(ordinal)
    call, loaded = context.call, context.driver
    properties = loaded.allocation_properties(ordinal, handle_types=cu.HANDLE_POSIX_FD)
    address = call("cuMemAddressReserve", nbytes, 0, 0, 0)
    began = perf_counter_ns()
    handle = call("cuMemCreate", nbytes, properties, 0)
    steps = {"create": perf_counter_ns() - began}
    call("cuMemMap", address, nbytes, 0, handle, 0)
    call("cuMemSetAccess", address, nbytes, [loaded.access(ordinal)], 1)
    _write(context, address, _PATTERN)
    began = perf_counter_ns()
    kind = loaded.handle_type(cu.HANDLE_POSIX_FD)
    descriptor = int(call(_EXPORT, handle, kind, 0))
    steps["export"] = perf_counter_ns() - began
    _send(channel, json.dumps({"steps_ns": steps}).encode(), descriptor)
    os.close(descriptor)
    channel.recv(16)
    seen = _read(context, address) == _ANSWER
    channel.sendall(json.dumps({"seen": seen}).encode())
    channel.recv(16)  # until this process is ended, with everything still mapped


def try_peers() -> tuple[PeerTrial, ...]:
    """Try every pair of devices, one chunk at a time; empty with one device.

    Raises:
        UnavailableError: If there is no usable driver.
        CudaError: If a device fails.
    """
    count = len(devices())
    with ExitStack() as stack:
        backings = []
        for ordinal in range(count if count > 1 else 0):
            backings.append(open_device(f"cuda:{ordinal}"))
            stack.callback(backings[-1].close)
        return tuple(
            _try_peer(owner, peer) for owner in backings for peer in backings if owner is not peer
        )


def _try_peer(owner: CudaBacking, peer: CudaBacking) -> PeerTrial:
    ordinals = owner.context.info.ordinal, peer.context.info.ordinal
    loaded = owner.context.driver
    offered = None
    if loaded.has("cuDeviceCanAccessPeer"):
        offered = bool(loaded.call("cuDeviceCanAccessPeer", ordinals[1], ordinals[0]))
    both = CudaBacking(owner.context, peers=ordinals[1:])
    nbytes = both.granularity
    reservation = both.reserve(nbytes)
    try:
        try:
            both.commit(reservation, 0, nbytes)
        except CudaError as error:
            if both.context.lost or error.call != "cuMemSetAccess":
                raise
            return PeerTrial(*ordinals, offered, granted=False, refusal=error.symbol)
        _write(owner.context, reservation.base, _PATTERN)
        seen = _read(peer.context, reservation.base) == _PATTERN
        peer.context.synchronise()
    finally:
        both.unreserve(reservation)
    alone_ns, together_ns = access_costs(both)
    return PeerTrial(*ordinals, offered, True, seen, alone_ns, together_ns)


def main(arguments: list[str]) -> int:
    """Run the exporting process."""
    descriptor, ordinal, nbytes = map(int, arguments)
    prepare_child()
    with socket.socket(fileno=descriptor) as channel:
        try:
            with _first_failure():
                _export(channel, ordinal, nbytes)
        except VmtoolError as error:
            channel.sendall(_as_message(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
