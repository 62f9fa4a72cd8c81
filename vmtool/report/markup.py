"""HTML and SVG elements that escape what is put into them."""

from __future__ import annotations

from html import escape
from typing import Final

# Elements that have no content and no end tag in HTML.
_VOID: Final = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already; every other string is escaped when it becomes part of a page."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Of the element; never from data.
        children: Strings are escaped, :class:`Markup` is taken as it is.
        attributes: An underscore at the end is dropped (``class_``) and others become dashes
            (``stroke_width``). ``None`` leaves the attribute out; floats are rounded to 0.01.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Return *children* one after the other, escaped unless they are markup."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
