"""What a user's type checker must accept: mypy checks this file with the package; nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from vmtool import VirtualBuffer


class _SupportsDLPack(Protocol):
    """What ``numpy.from_dlpack`` takes, by numpy's own stubs."""

    def __dlpack__(self, /, *, stream: None = None) -> CapsuleType: ...


def from_dlpack(buffer: VirtualBuffer) -> _SupportsDLPack:
    """Give a buffer to a function like numpy's."""
    return buffer
