"""A stored result of stress as input: bounded, checked, and never trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import InputError
from vmtool.input_files import kind_of, read_bytes
from vmtool.json_documents import MAX_BYTES, DocumentError, decode, parse
from vmtool.results.document_versions import document_named, from_version_1
from vmtool.results.stress import StressResult

if TYPE_CHECKING:
    from vmtool.results.stress import CallResult, PhaseResult


_NAME: Final = "vmtool.stress"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A result of stress as a file holds it.

    Attributes:
        path: The file.
        command: The command line that made it.
        vmtool: The version that made it.
        result: What is in it.
        compared: How many of its runs are compared.
    """

    path: str
    command: tuple[str, ...]
    vmtool: str
    result: StressResult
    compared: int = 0

    @property
    def started(self) -> str | None:
        """When it was started, in UTC."""
        conditions = self.result.conditions
        return None if conditions is None else conditions.started

    @property
    def host(self) -> str | None:
        """The name of the machine."""
        conditions = self.result.conditions
        return None if conditions is None else conditions.host

    @property
    def label(self) -> str | None:
        """What the user called it."""
        return self.result.settings.label


@dataclass(frozen=True, slots=True)
class _ProducedBy:
    command: tuple[str, ...]
    vmtool: str


def read_run(path: str) -> StoredRun:
    """Return the run of stress in the file at *path*.

    Raises:
        InputError: If the file cannot be read, is too big, is not JSON, or is not a document of
            a version that this vmtool can read; the message names the place.
    """
    data = read_bytes(path, MAX_BYTES, text=True)
    kind = kind_of(data[:8])
    if kind is not None:
        raise InputError(path, f"is {kind}, not a result of vmtool stress")
    document = parse(path, data)
    version = _check_kind(path, document)
    try:
        head = decode(_ProducedBy, document)
        result = decode(StressResult, from_version_1(document) if version == 1 else document)
    except DocumentError as error:
        raise InputError(path, error.problem, field=error.field or None) from error
    _check_samples(path, result)
    return StoredRun(path, head.command, head.vmtool, result)


def _check_kind(path: str, document: dict[str, Any]) -> int:
    """Return the version of *document*, which must be a result of stress."""
    kind, version = document.get("schema"), document.get("version")
    if kind != _NAME:
        hint = "write one with: vmtool stress --json -o FILE"
        if isinstance(kind, str):
            problem = f"is a document {kind[:60]!r}, not {_NAME!r}"
            raise InputError(path, problem, field="schema", hint=hint)
        problem = f"is not a document of vmtool: its 'schema' is not {_NAME!r}"
        raise InputError(path, problem, hint=hint)
    known = document_named(_NAME).version
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(path, "is not the number of a version", field="version")
    if version > known:
        raise InputError(
            path,
            f"has version {version if version < 10**9 else 'over a billion'}; this vmtool reads "
            f"{known}",
            field="version",
            hint="read it with the vmtool that wrote it, or a newer one",
        )
    return version


def _check_samples(path: str, result: StressResult) -> None:
    """Check what no type can state: that a summary is of as many samples as its histogram."""
    for i, method in enumerate(result.methods):
        parts: dict[str, PhaseResult | CallResult] = {
            **{f"phases[{j}]": phase for j, phase in enumerate(method.phases)},
            **{f"calls[{j}]": call for j, call in enumerate(method.calls)},
        }
        for name, part in parts.items():
            if part.summary.samples != part.histogram.count:
                raise InputError(
                    path,
                    f"{part.summary.samples} is not the histogram's {part.histogram.count}",
                    field=f"methods[{i}].{name}.summary.samples",
                )
