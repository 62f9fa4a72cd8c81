"""Typed access to the fields of one config, with checks and the origin of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from vmtool.errors import InputError
from vmtool.kv.geometry import Provenance, Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Above every real model, below everything that could make the arithmetic slow.
MAX_LAYERS = 4096
MAX_SIZE = 1 << 24
MAX_TOKENS = 1 << 40

#: The flags that override a value, by the value's name.
FLAGS = {
    "layers": "--layers",
    "kv_heads": "--kv-heads",
    "head_dim": "--head-dim",
    "head_dim_v": "--head-dim-v",
}


class Fields:
    """One object of a config file.

    A missing value falls back to the defaults of the architecture, and fails if there is none.

    Attributes:
        where: The file (or built-in name) that errors and provenance name.
        facts: Where each value came from; shared with nested objects.
        defaults: Values of the architecture for absent fields, by value name.
        architecture: What the model is called in messages.
        origin: The file where the defaults of the architecture are written.
        used: Keys that were read.
        true_if_absent: Of those, the flags that are absent and so true.
        mha_by_default: Whether an absent number of KV heads means one for each query head.
        names: The keys under which each value may be, by value name.
        applied: Overrides that took effect; shared with nested objects.
        outer: The object around this one, if a wrapper was opened.
        opened: The objects inside that were opened, and whose every key matters.
        changed: Where each key is from that `overlaid` put over the object's own.
        prefix: Where those are, or empty.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        where: str,
        *,
        prefix: str = "",
        source: Source = Source.FILE,
        overrides: Mapping[str, int] | None = None,
        facts: dict[str, Provenance] | None = None,
        applied: set[str] | None = None,
    ) -> None:
        self._data = data
        self._prefix = prefix
        self._source = source
        self._overrides = overrides or {}
        self.where = where
        self.facts = {} if facts is None else facts
        self.applied: set[str] = set() if applied is None else applied
        self.used: set[str] = set()
        self.defaults: Mapping[str, int] = {}
        self.true_if_absent: set[str] = set()
        self.names: Mapping[str, Sequence[str]] = {}
        self.architecture = self.origin = ""
        self.mha_by_default = False
        self.outer: Fields | None = None
        self.changed: Mapping[str, str] = {}
        self.prefix = ""
        self.opened: list[Fields] = []
        self._nested: dict[str, Fields] = {}

    def nested(self, key: str, *, whole: bool = False) -> Fields | None:
        """Return the object under *key*, or ``None`` if it is absent or null.

        Args:
            key: Its key.
            whole: Whether what is not read of it does not matter.
        """
        value = self._data.get(key)
        self.used.add(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, f"must be an object, not {_kind(value)}")
        if key not in self._nested:
            self._nested[key] = self.wrap(value, f"{self._prefix}{key}.")
            if not whole:
                self.opened.append(self._nested[key])
        return self._nested[key]

    def wrap(self, data: Mapping[str, Any], prefix: str) -> Fields:
        """Return *data* as fields that share this object's file, overrides and facts."""
        return Fields(
            data,
            self.where,
            prefix=prefix,
            source=self._source,
            overrides=self._overrides,
            facts=self.facts,
            applied=self.applied,
        )

    def overlaid(self, changes: Mapping[str, Any], prefix: str) -> Fields:
        """Return these fields with *changes*, the object at *prefix*, over them.

        Names, defaults and what is around it stay the same. Keys that are read count as read in
        both.
        """
        result = self.wrap({**self._data, **changes}, self._prefix)
        result.prefix = prefix
        result.names, result.defaults = self.names, self.defaults
        result.architecture, result.mha_by_default = self.architecture, self.mha_by_default
        result.origin = self.origin
        result.outer = self.outer
        result.used, result.true_if_absent = self.used, self.true_if_absent
        result.changed = {key: f"{prefix}{key}" for key in changes}
        self.opened.append(result)
        return result

    def all_keys(self) -> list[str]:
        """Return every key that the object has."""
        return list(self._data)

    def absent(self) -> frozenset[str]:
        """Return the keys that were looked up but are absent, as are all with the same meaning."""
        present = [keys for keys in self.names.values() if any(key in self._data for key in keys)]
        return frozenset(self.used.difference(self._data, *present))

    def raw(self, key: str) -> Any:
        """Return the value of *key* unchecked, or ``None``."""
        self.used.add(key)
        return self._data.get(key)

    def peek(self, key: str) -> Any:
        """Return the value of *key* unchecked, or ``None``, without counting it as read."""
        return self._data.get(key)

    @property
    def query_heads(self) -> int | None:
        """The number of query heads, if one number is stated or the default."""
        stated = (self.peek(key) for key in self.names["heads"])
        return next((n for n in stated if type(n) is int and n > 0), self.defaults.get("heads"))

    def given(self, name: str) -> bool:
        """Return whether any key of the value called *name* is present, even as null."""
        return any(key in self._data for key in self.names.get(name, (name,)))

    def has(self, key: str) -> bool:
        """Return whether *key* is present and not null."""
        return self._data.get(key) is not None

    @property
    def overridden(self) -> frozenset[str]:
        """Return the names of the values that flags give."""
        return frozenset(self._overrides)

    def fail(self, key: str, message: str, *, hint: str | None = None) -> NoReturn:
        """Raise an `InputError` that names the file and the field."""
        raise InputError(self.where, message, field=self.place(key), hint=hint)

    def place(self, key: str) -> str:
        """Return where *key* is in the file."""
        return f"{self._prefix}{shown(self.changed.get(key, key))}"

    # ---- values -------------------------------------------------------------------------------

    def integer(self, name: str, *, high: int = MAX_SIZE, low: int = 1) -> int:
        """Return the value called *name*: from a flag, the file, or the architecture.

        Raises:
            InputError: If it is missing, of another type, or out of range.
        """
        value = self.optional(name, high=high, low=low)
        if value is None:
            keys = self.names.get(name, (name,))
            self.fail(keys[0], "is missing" if keys[0] not in self._data else "is null")
        return value

    def optional(self, name: str, *, high: int = MAX_SIZE, low: int = 1) -> int | None:
        """Return the value called *name*, or ``None`` if nothing states it or the file has null."""
        keys = self.names.get(name, (name,))
        if name in self._overrides:
            self.used.update(keys)
            self.applied.add(name)
            return self._fact(name, self._overrides[name], Source.FLAG, FLAGS[name])
        found: tuple[str, int] | None = None
        for key in keys:
            self.used.add(key)
            if self._data.get(key) is None:
                continue
            value = self.checked(key, self._data[key], low=low, high=high)
            if found is not None and found[1] != value:
                self.fail(key, f"is {value}, but {found[0]} is {found[1]}")
            found = found or (key, value)
        if found is not None:
            return self._fact(name, found[1], self._source, self.where, f"{self._prefix}{found[0]}")
        if name in self.defaults and not self.given(name):
            # In transformers, the class of the config has a file of its own beside the model's.
            where = self.origin.replace("modeling_", "configuration_")
            return self._fact(name, self.defaults[name], Source.DEFAULT, where)
        return None

    def checked(self, key: str, value: Any, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return *value* if it is an integer in range.

        Raises:
            InputError: If it is not; ``True`` and ``8.0`` are not integers.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be an integer, not {_kind(value)}")
        if not low <= value <= high:
            shown = value if abs(value) < 1 << 64 else f"a number of {value.bit_length()} bits"
            self.fail(key, f"is {shown}; it must be from {low} to {high}")
        return int(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return the boolean *key*; absent and null mean *default*."""
        value = self.raw(key)
        if value is None:
            if default:
                self.true_if_absent.add(key)
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {_kind(value)}")
        return value

    def text(self, key: str) -> str | None:
        """Return the string *key*, or ``None`` if it is absent or null."""
        value = self.raw(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"must be a string, not {_kind(value)}")
        return value

    def items(self, key: str, *, length: int | None = None) -> list[Any] | None:
        """Return the list *key*, or ``None`` if it is absent or null.

        Raises:
            InputError: If it is not a list, is too long, or is not *length* long.
        """
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.fail(key, f"must be a list, not {_kind(value)}")
        if len(value) > MAX_LAYERS:
            self.fail(key, f"has {len(value)} entries; no model has more than {MAX_LAYERS}")
        if length is not None and len(value) != length:
            self.fail(key, f"has {len(value)} entries, but there are {length} layers")
        return value

    def integers(
        self, key: str, *, length: int | None = None, low: int = 0, high: int = MAX_SIZE
    ) -> list[int] | None:
        """Return the list of integers *key*, or ``None`` if it is absent or null."""
        values = self.items(key, length=length)
        if values is None:
            return None
        return [
            self.checked(f"{key}[{i}]", value, low=low, high=high) for i, value in enumerate(values)
        ]

    def derived(self, name: str, value: int | str, formula: str) -> None:
        """Record that the value called *name* was worked out by *formula*."""
        self.facts[name] = Provenance(value, Source.DERIVED, self.where, formula)

    def defaulted(self, name: str, value: int | str, reason: str) -> None:
        """Record that the value called *name* is what the architecture implies."""
        self.facts[name] = Provenance(value, Source.DEFAULT, self.origin, reason)

    def stated(self, name: str, value: int | str, key: str) -> None:
        """Record that the value called *name* was read from *key*."""
        self.facts[name] = Provenance(value, self._source, self.where, f"{self._prefix}{key}")

    def _fact(self, name: str, value: int, source: Source, where: str, detail: str = "") -> int:
        self.facts[name] = Provenance(value, source, where, detail)
        return value


def shown(key: str) -> str:
    """Return *key* short and printable, for an error message."""
    return key if len(key) <= 80 and key.isprintable() else repr(key[:80])


def _kind(value: Any) -> str:
    """Return what JSON calls *value*, short enough for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value!r}"[:40]
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return "a list" if isinstance(value, (list, tuple)) else "an object"
