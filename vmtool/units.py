"""Byte sizes, counts and durations: one parser and one formatter each, IEC units only."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

#: Sizes are counted in 64 bits by every OS and driver call that vmtool makes.
MAX_BYTES: Final = (1 << 64) - 1

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    **{unit.lower(): 1 << (10 * i) for i, unit in enumerate(_BINARY) if i},
    **{unit: 1000**i for i, unit in enumerate(("kb", "mb", "gb", "tb", "pb", "eb"), start=1)},
}
_COUNT_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}
_DURATION_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 24 * 3600 * 10**9,
}
#: What people write for a unit of size, and what they may mean.
_SHORT_SIZES: Final = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}
#: How much of what is not understood an error repeats.
_SHOWN: Final = 60
# Twenty digits hold any 64-bit value; more would only make the parser slow on hostile input.
_QUANTITY: Final = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-zµ]*)\s*", re.ASCII)

# The others are strings, which re compiles when they are first used.
# Several numbers, each with a unit, such as 1h30m.
_COMPOUND: Final = r"\s*+(?:[0-9]{1,20}(?:\.[0-9]{1,20})?[A-Za-zµ]{1,3}){2,6}\s*+"
_PARTS: Final = r"[0-9.]+[A-Za-zµ]+"
# Possessive, so that no input makes it slow.
_TOO_LONG: Final = r"\s*+0*+[1-9][0-9]{20,}+(?:\.[0-9]++)?\s*+([A-Za-zµ]*+)\s*+"


def _parse(text: str, units: dict[str, int], what: str, example: str, *, exact: bool = True) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        long = re.fullmatch(_TOO_LONG, text, re.ASCII)
        if long is not None and long[1].lower() in units:
            raise ValueError(f"{text[:_SHOWN]!r} is too large for a {what}: over 20 digits")
        raise ValueError(f"{text[:_SHOWN]!r} is not a {what}; write it like {example}")
    number, unit = match.groups()
    factor = units.get(unit.lower())
    if factor is None:
        known = ", ".join(sorted((u for u in units if u), key=lambda u: units[u]))
        if units is _SIZE_UNITS and unit.lower() in _SHORT_SIZES:
            binary = _SHORT_SIZES[unit.lower()]
            raise ValueError(f"{text!r} has no unit of size; write {number}{binary}")
        raise ValueError(f"{text!r} has an unknown unit {unit!r}; units are {known}")
    value = Fraction(number) * factor
    if exact and value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of the smallest unit")
    return int(value)


#: Where a size is far too small, as 16 is for 16GiB.
SIZES_HINT: Final = "a size without a unit is in bytes: write 16GiB, 512MiB or 24GB"


def parse_size(text: str, *, exact: bool = True) -> int:
    """Return *text* in bytes: ``"2MiB"`` is 2097152, ``"2MB"`` is 2000000, ``"4096"`` is 4096.

    Args:
        text: A number and a unit.
        exact: Refuse a fraction of a byte, as in ``"0.1KiB"``; else drop it.

    Raises:
        ValueError: If *text* is not a size, has an unknown unit, is not a whole number of bytes
            though *exact*, or does not fit in 64 bits.
    """
    nbytes = _parse(text, _SIZE_UNITS, "size", "64KiB, 2MiB or 4096", exact=exact)
    if nbytes > MAX_BYTES:
        raise ValueError(f"{text!r} is more than 64 bits can count ({MAX_BYTES} bytes)")
    return nbytes


def parse_count(text: str) -> int:
    """Return *text* as a count of tokens: ``"32k"`` is 32768, as context lengths are written.

    Raises:
        ValueError: If *text* is not a count or is not whole.
    """
    return _parse(text, _COUNT_UNITS, "count", "4096, 32k or 1m")


def parse_percent(text: str) -> Fraction:
    """Return *text* as a part of 1: ``"75%"`` and ``"75"`` are 3/4.

    Raises:
        ValueError: If *text* is not a percentage.
    """
    match = _QUANTITY.fullmatch(text.strip().removesuffix("%"))
    if match is None or match[2]:
        raise ValueError(f"{text[:_SHOWN]!r} is not a percentage; write it like 75%")
    return Fraction(match[1]) / 100


def parse_duration(text: str) -> int:
    """Return *text* in nanoseconds: ``"5ms"``, ``"1.5s"``, ``"1m30s"``, ``"1d"``.

    A bare number is seconds. Of several units each is smaller than the one before it.

    Raises:
        ValueError: If *text* is not a duration.
    """
    example = "500ms, 1m30s or 1h"
    is_compound = re.fullmatch(_COMPOUND, text, re.ASCII)
    parts = re.findall(_PARTS, text, re.ASCII) if is_compound else [text]
    total, last = 0, None
    units = [part.strip().lstrip("0123456789. ").lower() for part in parts]
    if len(parts) > 1 and not _DURATION_UNITS.keys() >= set(units):  # such as 1e9h
        raise ValueError(f"{text[:_SHOWN]!r} is not a duration; write it like {example}")
    for part in parts:
        total += _parse(part, _DURATION_UNITS, "duration", example)
        unit = _DURATION_UNITS[part.strip().lstrip("0123456789. ").lower()]
        if last is not None and unit >= last:
            raise ValueError(f"{text[:_SHOWN]!r} is not a duration; write it like {example}")
        last = unit
    return total


def format_size(nbytes: int) -> str:
    """Return *nbytes* with an IEC unit: exact when it is whole, else four significant digits.

    2097152 is ``2 MiB``, 1536 is ``1.5 KiB``, 4097 is ``4.001 KiB``.
    """
    if nbytes < 0:
        return "-" + format_size(-nbytes)
    exponent = min(max(nbytes.bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    unit = 1 << (10 * exponent)
    if nbytes % unit == 0:
        return f"{nbytes // unit} {_BINARY[exponent]}"
    value = nbytes / unit
    if value >= 1023.5 and exponent + 1 < len(_BINARY):
        return f"1 {_BINARY[exponent + 1]}"  # it would be rounded to 1024, which is that
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 10 else 3
    text = f"{value:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {_BINARY[exponent]}"


def two_sizes(one: int, other: int) -> tuple[str, str]:
    """Return two sizes that differ: in bytes where they would be rounded to the same."""
    texts = format_size(one), format_size(other)
    return texts if texts[0] != texts[1] else (f"{one:,} bytes", f"{other:,} bytes")


def format_duration(ns: float) -> str:
    """Return *ns* nanoseconds with three significant digits: ``182 µs``, ``1.21 ms``."""
    if ns < 0:
        return "-" + format_duration(-ns)
    for unit, factor in (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = ns / factor
        # 999.5 would be rounded to 1000, which is the next unit's 1.
        if value < 999.5 or unit == "s":
            break
    if unit == "ns" and value == int(value):
        return f"{int(value)} ns"
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def align_up(value: int, granule: int) -> int:
    """Return the smallest multiple of *granule* that is at least *value*."""
    return -(-value // granule) * granule


def align_down(value: int, granule: int) -> int:
    """Return the largest multiple of *granule* that is at most *value*."""
    return value // granule * granule


def count_of(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural where it is due: ``1 worker``, ``2 workers``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
