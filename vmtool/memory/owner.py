"""What owns memory, addresses or a place in a ledger is one object and stays one."""

from __future__ import annotations

from typing import NoReturn


class Owner:
    """Refuses ``copy`` and ``pickle``: two objects would give the same thing back twice."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse.

        Raises:
            TypeError: Always, as for a lock or a file.
        """
        raise TypeError(
            f"cannot copy or pickle a {type(self).__name__}: it owns what it stands for"
        )
