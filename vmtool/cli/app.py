"""The ``vmtool`` program: imports a command when it is used, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import click

from vmtool import __version__
from vmtool.cli.streams import drop_unwritten, print_and_exit, print_help, tell
from vmtool.errors import (
    REFUSED_BY_POLICY,
    ExitCode,
    UsageError,
    VmtoolError,
)
from vmtool.no_memory import is_no_memory, why_no_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Every command under the question that it answers, with the line that ``vmtool -h`` shows, so that
#: listing imports none of them. The module is ``vmtool.cli.NAME`` (dashes become underscores) and
#: has a command ``command``.
COMMAND_GROUPS: Final[dict[str, dict[str, str]]] = {
    "Is this machine fine? Start here.": {
        "check": "Limits, best method, granule, leaks and guards in 15 seconds.",
    },
    "What can this machine map, in what unit, and what will stop me?": {
        "granularity": "Units of reserving and committing, and the largest reservation.",
        "doctor": "Every limit on virtual memory here, and how to raise it.",
        "reserve": "Reserve addresses and show that this takes no memory.",
        "limits": "Limits of reserving, committing and mapping, and their causes.",
        "guards": "Show that a write to memory that is not committed faults.",
    },
    "How fast and how correctly does it commit and release?": {
        "grow": "Grow and shrink a buffer in place, compared with copying.",
        "stress": "Commit and release real memory, measured and checked.",
        "matrix": "Which granule and method cost least here.",
        "allocators": "A device's allocators, compared with virtual memory management.",
        "compare": "Show what got faster or slower between two sets of runs.",
    },
    "How many tokens fit?": {
        "kv-estimate": "What a model's KV cache costs, and how many tokens fit.",
        "kv-replay": "What a request trace does to KV memory, real or simulated.",
    },
    "What is my own engine doing with its memory right now?": {
        "inspect": "What a running process does with memory, and what limits it.",
    },
    "Which of my machines is different, and why?": {
        "fleet": "Compare many machines: which one differs, and why.",
    },
    "More": {
        "completion": "Print the completion script for bash, zsh or fish.",
        "schema": "Print the JSON Schema of a document that vmtool writes.",
    },
}
#: Every command with its line.
COMMANDS: Final[dict[str, str]] = {
    name: line for commands in COMMAND_GROUPS.values() for name, line in commands.items()
}
_TAKE_A_COMMAND: Final = frozenset({"inspect", "fleet"})
#: Where the group keeps the arguments it was called with, in click's ``meta``.
ARGUMENTS: Final = "vmtool.arguments"
#: Where the group keeps the command after ``--`` that ``inspect`` and ``fleet`` take.
COMMAND_AFTER: Final = "vmtool.command"
#: Whether ``--markdown`` was given.
MARKDOWN: Final = "vmtool.markdown"
#: EPERM and ENOSYS, with which a sandbox answers calls that it does not allow.
_REFUSALS: Final = {1, 38}


class Context(click.Context):
    """A context whose help fits a narrow terminal, where click would write 50 columns."""

    def make_formatter(self) -> click.HelpFormatter:
        import shutil  # a fiftieth of a start that shows no help

        columns = shutil.get_terminal_size().columns
        width = max(columns - 2, 20) if columns < 52 else None
        return self.formatter_class(width=width, max_width=self.max_content_width)


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, not to list it."""

    context_class = Context

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _pipe_may_close():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe_may_close():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        if any("\0" in argument for argument in args):  # no shell can pass one
            raise UsageError("an argument contains a NUL character")
        if args and args[0] in _TAKE_A_COMMAND and "--" in args:
            # click drops the "--", so that the two sides could not be distinguished later.
            at = args.index("--")
            ctx.meta[COMMAND_AFTER] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = print_help
        return option

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"vmtool.cli.{cmd_name.replace('-', '_')}")
        return cast("click.Command", module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            raise click.exceptions.NoSuchCommand(
                args[0], possibilities=get_close_matches(args[0], COMMANDS), ctx=ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for question, commands in COMMAND_GROUPS.items():
            formatter.write_paragraph()
            formatter.write_text(question)
            with formatter.indentation():
                # Padded, so that the lines of all groups begin in the same column.
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])


@contextmanager
def _pipe_may_close() -> Iterator[None]:
    """Exit with 0 when the reader has closed the pipe; click itself would exit with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise click.exceptions.Exit(ExitCode.DONE) from error


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        print_and_exit(ctx, f"vmtool, version {__version__}")


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a call failed, 2 wrong usage, 3 a check failed, 4 not available "
    "here, 5 refused by budget or preflight, 130 interrupted. "
    "docs/glossary.md explains the words.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Diagnose and benchmark memory that is contiguous in address space and scattered in RAM or on a GPU.

    \b
    vmtool stress
    vmtool kv-estimate llama-3.1-8b --budget 24GiB
    """  # noqa: D301 - click's own mark


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; errors go to stderr."""
    unwritten: list[str] = []
    code = _run(arguments, unwritten)
    return ExitCode.CALL_FAILED if unwritten else code


def _run(arguments: Sequence[str] | None, unwritten: list[str]) -> int:
    """Run the command line; files that its result could not be written to are added to a list."""
    try:
        code = main.main(
            args=arguments,
            prog_name="vmtool",
            standalone_mode=False,
            obj=unwritten,
        )
    except VmtoolError as error:
        _tell(error)
        return error.exit_code
    except click.ClickException as error:
        with suppress(OSError):  # stderr may be full or gone: the code says it as well
            error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        with suppress(OSError):
            click.echo("vmtool: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if not isinstance(error, OSError) and not is_no_memory(error):
            raise
        _tell(_unforeseen(error))
        return ExitCode.CALL_FAILED
    code = code if isinstance(code, int) else ExitCode.DONE
    # Such as by the last call, which gives the context back, or while the result was being described.
    if code == ExitCode.DONE and (lost := _lost_device()) is not None:
        _tell(lost)
        return ExitCode.CALL_FAILED
    return code


def _lost_device() -> VmtoolError | None:
    """Return the error of a device that this process lost; ``None`` also where it used none."""
    driver = sys.modules.get("vmtool.memory.cuda.driver")
    return None if driver is None else cast("VmtoolError | None", driver.loss())


def entry() -> NoReturn:
    """Run the command line and exit with the code that says how it went."""
    from vmtool.cli.interrupt import raise_interruptions

    raise_interruptions()
    code = run()
    drop_unwritten()
    sys.exit(code)


def _unforeseen(error: Exception) -> VmtoolError:
    """Return the error for a failure that no command expects: a full disk, no memory at all."""
    if isinstance(error, OSError) and not is_no_memory(error):
        told = _refused(error) if error.errno in _REFUSALS else VmtoolError(str(error))
    else:
        cause, hint = why_no_memory()
        told = VmtoolError("this process cannot get more memory", cause=cause, hint=hint)
    told.__cause__ = error
    return told


def _refused(error: OSError) -> VmtoolError:
    """Return an error that names the function which made the refused call, as Python does not."""
    import errno

    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "" if frame is None else f" in {frame.tb_frame.f_code.co_name}()"
    symbol = errno.errorcode.get(error.errno or 0, "UNKNOWN")
    cause, hint = REFUSED_BY_POLICY
    return VmtoolError(
        f"a system call failed{where}: {symbol} ({error.errno}): {error.strerror}",
        cause=cause,
        hint=hint,
    )


def _tell(error: VmtoolError) -> None:
    if os.environ.get("VMTOOL_DEBUG"):
        import traceback

        traceback.print_exception(error)
    tell(f"vmtool: error: {error}")
    if error.cause:
        tell(f"  cause: {error.cause}")
    if error.hint:
        tell(*f"  hint: {error.hint}".split("\n"))  # it may be a list
    for note in getattr(error, "__notes__", ()):
        tell(f"  note: {note}")
