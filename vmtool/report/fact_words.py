"""Settings of a run and facts about a machine, as people write them: with words and units."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.results.stress import StressSettings

#: Settings whose names say too little to somebody who does not know the options.
_SETTINGS: Final = {
    "capacity_bytes": "reserved for each buffer",
    "huge": "huge pages",
    "threads": "threads in each worker",
    "inject": "injected faults",
    "retain_bytes": "most unmapped memory of a pool",
    "hold": "whole budget held once",
    "huge_page_bytes": "reserved huge pages",
    "node": "NUMA node",
    "clear": "pool memory cleared when mapped",
}
_UNITS: Final = (" in bytes", "_bytes", "_ns")
_CUDA_VERSION: Final = "CUDA version of the driver"


def fact_name(name: str) -> str:
    """Return the name of a setting or fact without its unit, as the value has one."""
    if name in _SETTINGS:
        return _SETTINGS[name]
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ") if name.islower() and "." not in name else name


def fact_text(name: str, value: str | float | None) -> str:
    """Return a setting or fact as people write it: sizes and durations with a unit."""
    if value is None or value == "":
        return "none" if value == "" else "not available"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("bytes"):
            return format_size(value)
        if name.endswith("_ns"):
            return format_duration(value)
        if name == _CUDA_VERSION:
            from vmtool.memory.cuda.absence import dotted  # noqa: PLC0415 - most have no device

            return dotted(value)
        if name != "seed":  # it is copied to a command line
            return f"{value:,}"
    return str(value)


def settings_rows(settings: StressSettings) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run that are set, each by name."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if value in {None, ()}:
            continue
        text = ", ".join(value) if isinstance(value, tuple) else fact_text(item.name, value)
        yield fact_name(item.name), text
