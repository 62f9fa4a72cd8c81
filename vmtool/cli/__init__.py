"""The command line: one file a command."""

from __future__ import annotations

from typing import Final

#: Where the group keeps the arguments it was called with, in click's ``meta``.
ARGUMENTS: Final = "vmtool.arguments"
#: Where the group keeps the command after ``--`` that ``inspect`` and ``fleet`` take.
COMMAND_AFTER: Final = "vmtool.command"
#: Whether ``--markdown`` was given.
MARKDOWN: Final = "vmtool.markdown"
