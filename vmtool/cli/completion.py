"""``vmtool completion``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.app import main
from vmtool.cli.options import Command, output_file_option
from vmtool.errors import ExitCode

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
@output_file_option
def command(*, shell: str, path: str) -> int:
    """Print the completion script for SHELL: commands, options, models, methods and formats.

    \b
    vmtool completion bash
    vmtool completion fish -o vmtool.fish

    For bash, add  eval "$(vmtool completion bash)"  to ~/.bashrc. For zsh, add the same line with
    zsh in place of bash to ~/.zshrc. For fish, write the script to
    ~/.config/fish/completions/vmtool.fish.
    """  # noqa: D301 - click's own mark
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    from vmtool.cli.output import Output

    kinds: dict[str, type[ShellComplete]] = {
        "bash": BashComplete,
        "zsh": ZshComplete,
        "fish": FishComplete,
    }
    Output(path=path).write(kinds[shell](main, {}, "vmtool", "_VMTOOL_COMPLETE").source() + "\n")
    return ExitCode.DONE
