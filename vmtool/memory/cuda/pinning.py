"""Memory of the host that the driver page-locks for its devices: cuMemHostRegister.

NVIDIA's kernel module pins the pages itself and does not look at RLIMIT_MEMLOCK
(docs/platform-facts.md#cuda-pinned); Windows and WSL have a limit of their own.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from vmtool.memory.cuda.diagnosis import diagnose_pinning
from vmtool.memory.cuda.errors import CudaOutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.memory.cuda.context import DeviceContext


@contextmanager
def pinned(context: DeviceContext, address: int, nbytes: int) -> Iterator[None]:
    """Fault ``address..address + nbytes`` of this process in and keep it page-locked meanwhile.

    Raises:
        CudaOutOfMemoryError: If it is too much; ``cause`` says what limits it, as far as is known.
        CudaError: If the driver refuses for another reason.
    """
    with context.current():
        try:
            context.call("cuMemHostRegister", address, nbytes, 0)
        except CudaOutOfMemoryError as error:
            raise error.copy(diagnose_pinning(context.info.driver_model)) from error
        try:
            yield
        finally:
            context.call("cuMemHostUnregister", address)
