"""The types of parameters: numbers with units, backings, huge pages, and files to write."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool import units
from vmtool.errors import UsageError, VmtoolError

if TYPE_CHECKING:
    from collections.abc import Callable


TRANSPARENT: Final = "transparent"


class _Quantity(click.ParamType[int]):
    """A number with a unit, parsed by :mod:`vmtool.units`."""

    def __init__(self, name: str, parse: Callable[[str], int], *, minimum: int) -> None:
        self.name = name
        self._parse = parse
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            number = self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self._minimum:
            self.fail(f"{value!r} is not positive", param, ctx)
        return number


class BackingName(click.ParamType[str]):
    """The name of a backing; plain ``cuda`` is the device that ``VMTOOL_DEVICE`` names, or 0.

    Args:
        accepted: The names that the command accepts, as its help lists them.
    """

    name = "backing"

    def __init__(self, accepted: str) -> None:
        self.accepted = accepted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or (value == "all" and self.accepted.startswith("all, ")):
            return str(value)  # an empty value has an error of its own
        if value != "cuda":
            from vmtool.memory.backing_by_name import is_device

            try:
                is_device(value)
            except UsageError as error:
                error.hint = f"use {self.accepted}"
                raise
            return str(value)
        device = os.environ.get("VMTOOL_DEVICE") or "0"
        if not (device.isascii() and device.isdigit()):
            self.fail(
                f"VMTOOL_DEVICE is {device!r}, which is not the number of a device", param, ctx
            )
        return f"cuda:{device}"


class HugePages(click.ParamType[int]):
    """Bytes of reserved huge pages, or 0 for transparent ones, which have no size to choose."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == TRANSPARENT else SIZE.convert(value, param, ctx)


class _ResultFile(click.Path):
    """A file to write when the work is done. That it can be written is made sure of before."""

    def __init__(self, *, or_stdout: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=or_stdout)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if self.allow_dash and path == "-":
            if sys.stdout is None:
                raise VmtoolError("cannot write stdout: it is closed", hint="use -o FILE")
        elif path == "-":
            self.fail("'-' is stdout, where the result goes; give a file", param, ctx)
        elif not path:  # claim() would say that it is a folder
            raise UsageError(describe_empty(param), hint=GIVE_VALUE)
        else:
            from vmtool.cli.output import claim, note_result

            real = claim(str(path))
            if real is not None and param is not None and ctx is not None:
                note_result(real, param, ctx)
        return path


GIVE_VALUE: Final = "give a value, or leave it out"


def describe_empty(param: click.Parameter | None) -> str:
    """Return what is wrong with an empty value, as of a variable that is not set."""
    if param is None:
        return "a file's name is empty"
    if isinstance(param, click.Option):
        return f"{param.opts[0]} has an empty value"
    # An argument's metavar may say more than its name.
    return f"{str(param.name).removesuffix('s').upper()} has an empty value"


#: A positive number of bytes, such as ``64KiB``.
SIZE: Final = _Quantity("size", units.parse_size, minimum=1)
#: Bytes, zero allowed.
SIZE_OR_ZERO: Final = _Quantity("size", units.parse_size, minimum=0)
#: A positive number of tokens or cycles, such as ``32k``.
COUNT: Final = _Quantity("count", units.parse_count, minimum=1)
#: A positive duration in nanoseconds, such as ``10s``.
DURATION: Final = _Quantity("duration", units.parse_duration, minimum=1)
#: A file beside the result.
FILE: Final = _ResultFile()
#: A file, or ``-`` for stdout.
FILE_OR_STDOUT: Final = _ResultFile(or_stdout=True)
