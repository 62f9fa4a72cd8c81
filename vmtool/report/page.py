"""HTML and SVG elements that escape what is put into them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


# The browser is told to load nothing and to run no script, also if a string slipped through.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def page(title: str, *body: str) -> str:
    """Return a whole HTML document."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def section(heading: str, *content: str) -> Markup:
    """Return a heading and what stands under it; nothing when there is nothing."""
    if not any(content):
        return Markup()
    return tag("section", tag("h2", heading), *content)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, style: str | None = None
) -> Markup:
    """Return a table; on a phone each row becomes a block with the headings beside the values."""
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in headings)))
    lines = [
        tag(
            "tr",
            *(tag("td", cell, data_label=name) for name, cell in zip(headings, row, strict=True)),
        )
        for row in rows
    ]
    return tag("table", head, tag("tbody", *lines), class_=style) if lines else Markup()


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return names with their values; what is ``None`` is not told."""
    rows = [(name, "not told" if value is None else str(value)) for name, value in pairs]
    return table(("fact", "value"), rows, style="facts")


def figure(caption: str, chart: Markup, *, style: str | None = None) -> Markup:
    """Return a chart with its caption."""
    return tag("figure", tag("figcaption", caption), chart, class_=style)


def check(good: bool | None, name: str, detail: str, hint: str | None = None) -> Markup:
    """Return one verdict: passed, failed, or (``None``) not made."""
    mark, style = {True: ("✓ ", "good"), False: ("✗ ", "bad"), None: ("- ", "soft")}[good]
    more = [tag("br"), tag("span", hint, class_="soft")] if hint and good is False else []
    return tag("li", tag("strong", join(mark, name), class_=style), ": ", detail, *more)


def checks(items: Sequence[Markup]) -> Markup:
    """Return a list of verdicts."""
    return tag("ul", *items, class_="checks") if items else Markup()


def grid(figures: Sequence[Markup]) -> Markup:
    """Return charts beside each other, as many as the page is wide for."""
    return tag("div", *figures, class_="grid") if figures else Markup()


def flat(prefix: str, value: object) -> Iterable[tuple[str, object]]:
    """Yield the scalars in nested facts, each with the path to it."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield prefix, value
        return
    for key, item in items:
        yield from flat(f"{prefix}.{key}" if prefix else str(key), item)
