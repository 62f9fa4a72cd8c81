"""Options that several commands share, types of values with completion, and help under headings."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from vmtool import units
from vmtool.cli.app import MARKDOWN, Context
from vmtool.cli.streams import print_help
from vmtool.errors import UsageError, VmtoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem


_TRANSPARENT: Final = "transparent"
_GIVE_VALUE: Final = "give a value, or leave it out"
_F = TypeVar("_F", bound="Callable[..., Any]")
_FROM_USER: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
#: Which heading of the help each option stands under.
_HEADINGS: Final[dict[click.Parameter, str]] = {}


class Command(click.Command):
    """A command whose help shows its options under headings.

    An option's heading is that of its :func:`option_group`. An empty value, as of a variable that
    is not set, is wrong usage.
    """

    context_class = Context

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for param in self.params:
            if param.name in _VALUES and not isinstance(param.type, click.Choice):
                param._custom_shell_complete = _complete  # noqa: SLF001 - set after it is made

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.params.get("as_json") and ctx.meta.get(MARKDOWN):
            raise UsageError(
                "--markdown and --json cannot be used together", hint="give one of them"
            )
        for param in self.params:
            value = ctx.params.get(param.name or "")
            values = value if isinstance(value, tuple) else (value,)
            if "" in values and ctx.get_parameter_source(param.name or "") in _FROM_USER:
                raise UsageError(_describe_empty(param), hint=_GIVE_VALUE)
        return rest

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = print_help
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.params:
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(_HEADINGS.get(param, "Options"), []).append(record)
        help_option = self.get_help_option(ctx)
        if help_option is not None:
            last = next(reversed(sections), "Options")
            sections.setdefault(last, []).append(help_option.get_help_record(ctx) or ("", ""))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=min(30, formatter.width // 2))


def option_group(*options: Callable[[Any], Any], heading: str | None = None) -> Callable[[_F], _F]:
    """Return a decorator that adds *options*; help shows them in this order.

    Args:
        options: Made by :func:`click.option` or this function.
        heading: What help shows above them, such as ``How long``.
    """

    def add(function: _F) -> _F:
        for option in reversed(options):
            before = len(getattr(function, "__click_params__", ()))
            function = option(function)
            for param in getattr(function, "__click_params__", ())[before:]:
                if heading is not None:
                    _HEADINGS.setdefault(param, heading)
        return function

    return add


def into_dataclass(
    name: str, load: Callable[[], type[Any]], **renamed: str
) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that hands a command the parameters of a dataclass as one argument.

    Args:
        name: Of the argument.
        load: Returns the dataclass; its fields are named as the parameters are.
        renamed: Fields that are not, with the parameter.
    """

    def add(function: _F) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(**parameters: Any) -> Any:
            kind = load()
            names = {field.name: renamed.get(field.name, field.name) for field in fields(kind)}
            taken = {
                field: parameters.pop(parameter)
                for field, parameter in names.items()
                if parameter in parameters
            }
            return function(**{name: kind(**taken)}, **parameters)

        return wrapper

    return add


def _method_names() -> Iterable[str]:
    from vmtool.memory.backing_by_name import methods_of

    return ("all", *methods_of("host"), *methods_of("cuda"))


def _model_names() -> Iterable[str]:
    from vmtool.kv.sources.model_lookup import builtin_names

    return builtin_names()


def _format_names() -> Iterable[str]:
    from vmtool.kv.element_formats import FORMATS

    return FORMATS


def _policy_names() -> Iterable[str]:
    from vmtool.kv.packing.policies import POLICIES

    return POLICIES


def _engine_names() -> Iterable[str]:
    from vmtool.kv.engines.known_engines import ENGINES

    return ENGINES


#: What can be completed, by the name of the parameter, and whether it may be a file as well.
_VALUES: Final[dict[str, tuple[Callable[[], Iterable[str]], bool]]] = {
    "backing": (lambda: ("host", "cuda", "cuda:0"), False),
    "method": (_method_names, False),
    "methods": (_method_names, False),
    "model": (_model_names, True),
    "dtype": (_format_names, False),
    "dtype_k": (_format_names, False),
    "dtype_v": (_format_names, False),
    "policy": (_policy_names, False),
    "engine": (_engine_names, False),
    "before": (lambda: (), True),
    "after": (lambda: (), True),
    "trace": (lambda: ("synthetic:",), True),
    "files": (lambda: (), True),
}


def completing(
    names: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of a parameter that takes one of *names*, which are made when needed."""
    return lambda _ctx, _param, incomplete: [n for n in names() if n.startswith(incomplete)]


def _complete(_ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what completes *incomplete*, the value of *param* so far."""
    from click.shell_completion import CompletionItem

    names, may_be_file = _VALUES[str(param.name)]
    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file")] if may_be_file and not found else found


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


class _HugePages(click.ParamType[int]):
    """Bytes of reserved huge pages, or 0 for transparent ones, which have no size to choose."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == _TRANSPARENT else SIZE.convert(value, param, ctx)


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
            raise UsageError(_describe_empty(param), hint=_GIVE_VALUE)
        else:
            from vmtool.cli.output import claim, note_result

            real = claim(str(path))
            if real is not None and param is not None and ctx is not None:
                note_result(real, param, ctx)
        return path


def _describe_empty(param: click.Parameter | None) -> str:
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
#: ``-o``: pass it to :class:`vmtool.cli.output.Output`.
output_file_option: Final = click.option(
    "-o",
    "--output",
    "path",
    type=FILE_OR_STDOUT,
    default="-",
    metavar="FILE",
    help="Write the result to FILE instead of stdout.",
)


def _note_markdown(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[MARKDOWN] = value


#: ``--json``, ``-o`` and ``-q``: pass them to :class:`vmtool.cli.output.Output`.
output_options: Final = option_group(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option(
        "--markdown",
        is_flag=True,
        expose_value=False,
        callback=_note_markdown,
        help="Print Markdown, to paste into a bug report.",
    ),
    output_file_option,
    click.option("-q", "--quiet", is_flag=True, help="No notices or progress on stderr."),
    heading="Output",
)
#: ``--no-host``: pass it to :class:`vmtool.machine.run_conditions.RunConditionsWatch`.
host_option: Final = option_group(
    click.option(
        "--no-host",
        "name_host",
        flag_value=False,
        default=True,
        help="Leave the machine's name out of the result.",
    ),
    heading="Output",
)
html_option: Final = option_group(
    click.option(
        "--html",
        type=FILE,
        metavar="FILE",
        help="Also write one self-contained page.",
    ),
    heading="Output",
)


def compare_option(axes: Iterable[str], text: str) -> Callable[[_F], _F]:
    """Return ``--compare`` with the help *text*, which completes the names of *axes*."""
    return click.option(
        "--compare",
        multiple=True,
        metavar="AXIS=A,B",
        shell_complete=completing(lambda: [f"{axis}=" for axis in axes]),
        help=text,
    )


def csv_option(content: str) -> Callable[[_F], _F]:
    """Return ``--csv`` of a command that writes *content* beside its result."""
    return option_group(
        click.option("--csv", type=FILE, metavar="FILE", help=f"Also write {content}."),
        heading="Output",
    )


_ALL: Final = "all, host, cuda, cuda:N or cuda:all"
#: ``--backing`` of commands that look at every kind of memory by default.
all_backings_option: Final = click.option(
    "--backing",
    type=BackingName(_ALL),
    default="all",
    show_default=True,
    metavar="NAME",
    help=f"{_ALL}.",
)


def _backing_option(accepted: str) -> Callable[[_F], _F]:
    return click.option(
        "--backing",
        type=BackingName(accepted),
        default="host",
        show_default=True,
        envvar="VMTOOL_BACKING",
        show_envvar=True,
        metavar="NAME",
        help=f"{accepted}; plain cuda is device VMTOOL_DEVICE, or 0.",
    )


#: ``--backing``: which memory to use.
backing_option: Final = _backing_option("host, cuda or cuda:N")
_CHUNK: Final = click.option(
    "--chunk",
    type=SIZE,
    metavar="SIZE",
    help="Size of each physical handle of a device, a multiple of its granularity; by default what its driver recommends.",
)
#: ``--backing`` and ``--chunk``: which memory to use, and in what pieces.
backing_options: Final = option_group(backing_option, _CHUNK)
#: The same where all devices can run at once.
devices_options: Final = option_group(_backing_option("host, cuda, cuda:N or cuda:all"), _CHUNK)


def _split_huge(ctx: click.Context, _param: click.Parameter, value: int | None) -> bool:
    ctx.params["huge_page_bytes"] = value or None
    return value == 0


#: ``--huge``: gives the command ``huge`` and ``huge_page_bytes``, as ``open_backing`` has them.
huge_option: Final = click.option(
    "--huge",
    type=_HugePages(),
    is_flag=False,
    flag_value=_TRANSPARENT,
    callback=_split_huge,
    metavar="[SIZE]",
    help="Ask for transparent huge pages; with SIZE, 2MiB or 1GiB, use only reserved ones of that "
    "size (Linux, method fixed).",
)
#: ``--node``: the NUMA node of what is committed.
node_option: Final = click.option(
    "--node",
    type=click.IntRange(0, 1023),
    metavar="N",
    help="Commit on NUMA node N only, and check where the pages are (Linux).",
)
