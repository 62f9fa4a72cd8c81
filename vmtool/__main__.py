"""``python -m vmtool`` is the ``vmtool`` command."""

from vmtool.cli import entry

if __name__ == "__main__":
    entry()
