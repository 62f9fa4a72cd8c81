"""Sets of stress runs: read from files, checked and described, and which runs are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vmtool.compare.machines_and_settings import (
    condition_differences,
    machine_differences,
    settings_differences,
)
from vmtool.errors import InputError
from vmtool.input_files import kind_of, read_bytes
from vmtool.json_documents import MAX_BYTES, DocumentError, decode, parse
from vmtool.results.compare import ComparedFile, ComparedSet, Difference, LeftOut, UnlikeFile
from vmtool.results.document_versions import document_named, from_version_1
from vmtool.results.stress import Outcome, StressResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.results.stress import CallResult, MethodResult, PhaseResult

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


@dataclass(frozen=True, slots=True)
class RunSet:
    """One side of a comparison: the runs of one result, or of all results in a folder.

    Attributes:
        path: The file or folder.
        files: The results; at least one.
        runs: The methods of each run that is compared.
        incomplete: Runs that did not end as they should.
    """

    path: str
    files: tuple[StoredRun, ...]
    runs: tuple[tuple[MethodResult, ...], ...]
    incomplete: tuple[LeftOut, ...]


def read_set(path: str) -> RunSet:
    """Return the runs of stress in the file at *path*, or in all ``.json`` files of that folder.

    Raises:
        InputError: If a file is not a result of stress, or a folder has none.
    """
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        return set_of(path, [read_run(path)])
    names = sorted(
        str(file) for file in folder.iterdir() if file.name.endswith((".json", ".json.gz"))
    )
    if not names:
        raise InputError(path, "is a folder without .json files")
    return set_of(path, [read_run(name) for name in names])


def set_of(path: str, files: Sequence[StoredRun]) -> RunSet:
    """Return the set of all runs in *files*.

    A run that crashed, hung or was refused a call is left out; one that was interrupted has fewer
    cycles, and is compared.
    """
    runs: list[tuple[MethodResult, ...]] = []
    incomplete: list[LeftOut] = []
    kept = []
    for stored in files:
        file = replace(stored, result=_with_full_names(stored.result))
        before = len(runs)
        for index, (outcome, methods) in enumerate(_runs_of(file.result)):
            compared = outcome in {Outcome.COMPLETE, Outcome.INTERRUPTED}
            compared &= any(method.phases for method in methods)
            if outcome is not Outcome.COMPLETE or not compared:
                cycles = sum(method.cycles for method in methods)
                incomplete.append(LeftOut(file.path, index, outcome, cycles, compared))
            if compared:
                runs.append(methods)
        kept.append(replace(file, compared=len(runs) - before))
    return RunSet(path, tuple(kept), tuple(runs), tuple(incomplete))


def _with_full_names(result: StressResult) -> StressResult:
    """Return *result* with each method called by what it did: ``--huge`` is part of its name.

    ``stress --huge`` calls its method ``fixed``, and ``stress --method all`` calls the same work
    ``fixed+huge``; only alike names may be compared.
    """
    settings = result.settings
    if not settings.huge:
        return result

    def named(methods: Sequence[MethodResult]) -> tuple[MethodResult, ...]:
        return tuple(replace(m, method=settings.full_name(m.method)) for m in methods)

    names = tuple(map(settings.full_name, settings.methods))
    return replace(
        result,
        settings=replace(settings, methods=names, huge=False),
        methods=named(result.methods),
        runs=tuple(replace(run, methods=named(run.methods)) for run in result.runs),
    )


def _runs_of(result: StressResult) -> list[tuple[Outcome, tuple[MethodResult, ...]]]:
    if result.runs:
        return [(run.outcome, run.methods) for run in result.runs]
    return [(result.outcome, result.methods)]


def describe_set(runs: RunSet) -> ComparedSet:
    """Return what the document says about *runs*, with what its files do not have in common."""
    files = tuple(map(describe_file, runs.files))
    first, *rest = compared_files(runs)
    unlike = ((file.path, tuple(_unlike(first, file))) for file in rest)
    return ComparedSet(
        path=runs.path,
        runs=len(runs.runs),
        files=files,
        incomplete=runs.incomplete,
        unlike=tuple(UnlikeFile(path, found) for path, found in unlike if found),
    )


def describe_file(file: StoredRun) -> ComparedFile:
    """Return what the document says about *file*."""
    conditions = file.result.conditions
    load = None if conditions is None else conditions.load_average
    return ComparedFile(
        path=file.path,
        command=file.command,
        vmtool=file.vmtool,
        runs=file.compared,
        started=file.started,
        host=file.host,
        label=file.label,
        load=None if load is None else load[0],
        idle_share=None if conditions is None else conditions.idle_share,
    )


def _unlike(first: StoredRun, other: StoredRun) -> Iterator[Difference]:
    """Yield why *other* is no repetition of *first*."""
    if first.host and other.host and first.host != other.host:
        yield Difference("host", first.host, other.host)
    yield from machine_differences(first.result.machine, other.result.machine)
    yield from condition_differences(first.result.conditions, other.result.conditions)
    yield from settings_differences(first.result.settings, other.result.settings)
    methods = [", ".join(file.result.settings.methods) for file in (first, other)]
    if methods[0] != methods[1]:
        yield Difference("methods", *methods)


def compared_files(runs: RunSet) -> Sequence[StoredRun]:
    """Return the files with a run that is compared; what is left out need not be alike."""
    return [file for file in runs.files if file.compared] or runs.files
