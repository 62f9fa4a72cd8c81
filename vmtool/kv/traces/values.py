"""Numbers and times in traces, checked: exact, finite, not negative, not absurd."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from vmtool.kv.traces.request import MAX_TOKENS, LineError

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - only differences count
_DATE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:Z|[+-]00:?00)?", re.ASCII
)
# A date is some 56 years after the epoch, and numbers may count from there as well; only the
# distance to the first one must be small.
_MAX_SINCE_EPOCH: Final = 1 << 38


def tokens(value: Any, name: str) -> int:
    """Return *value*, a JSON number or the text of one, as a count of tokens.

    Raises:
        LineError: If it is not a whole number from 0 to the most that a request may have.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.isascii() and len(value) <= 20:
        text = value.strip()
        whole, _, rest = text.partition(".")  # spreadsheets write 12.0
        if not whole.isdigit() or rest.strip("0"):
            raise LineError(f"{name} {_shown(value)} is not a count of tokens")
        number = int(whole)
    else:
        raise LineError(f"{name} {_shown(value)} is not a count of tokens")
    if not 0 <= number <= MAX_TOKENS:
        raise LineError(f"{name} {_shown(number)} is not from 0 to {MAX_TOKENS}")
    return number


def decimal_ns(value: Any, name: str, unit_ns: int) -> int:
    """Return *value*, a number of units of *unit_ns*, in whole nanoseconds.

    Raises:
        LineError: If it is no finite number from 0 to some 8,700 years.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise LineError(f"{name} {_shown(value)} is not a time")
    if isinstance(value, str) and len(value) > 40:
        raise LineError(f"{name} {_shown(value)} is not a time")
    limit = _MAX_SINCE_EPOCH * 10**9 // unit_ns
    if isinstance(value, int):
        if not 0 <= value <= limit:
            raise LineError(f"{name} {_shown(value)} is not from 0 to {limit}")
        return value * unit_ns
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        raise LineError(f"{name} {_shown(value)} is not a time") from None
    # The order matters: comparing NaN raises, and 1e999999999 must never be written out.
    if not number.is_finite() or number < 0 or number > limit:
        raise LineError(f"{name} {_shown(value)} is not from 0 to {limit}")
    return int(number * unit_ns)


def date_ns(text: str, name: str) -> int:
    """Return a date and time such as ``2023-11-16 18:17:03.9799600`` in ns after 1970.

    Raises:
        LineError: If it is none.
    """
    match = _DATE.fullmatch(text.strip()) if len(text) <= 64 else None
    if match is None:
        raise LineError(f"{name} {_shown(text)} is not a date and time")
    seconds, fraction = match.groups()
    try:
        since = datetime.fromisoformat(seconds) - _EPOCH
    except ValueError:
        raise LineError(f"{name} {_shown(text)} is not a date and time") from None
    whole = since.days * 86400 + since.seconds
    if not 0 <= whole < _MAX_SINCE_EPOCH:
        raise LineError(f"{name} {_shown(text)} is not after 1970")
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    if isinstance(value, (dict, list)):
        return "(a list or an object)"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
