"""Text from outside, such as file names, made safe for a terminal and for every encoding."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return *text* with escapes for what a terminal would obey and for what no encoding has."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
