"""The frame and the parts of every HTML page: sections, tables, checks, figures; all escape text."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vmtool import __version__
from vmtool.errors import printable_lines
from vmtool.json_documents import encode
from vmtool.results.document_versions import document_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The words of the reports that other fields use otherwise, or not at all.
GLOSSARY: Final = (
    ("reserve", "Take a range of addresses, without memory."),
    ("commit", "Put memory behind a part of a reservation."),
    ("touch", "Write to committed memory for the first time, so that pages are put behind it."),
    ("release", "Give the memory back and keep the addresses."),
    ("granule", "The unit of commits: a multiple of what the platform can map."),
    ("cycle", "One commit, its touch and its release."),
    ("charge", "What the system counts against its limit on promised memory."),
    ("resident", "Pages that are in RAM."),
    ("mappings", "The memory areas of a process; Linux limits their number."),
    (
        "run",
        (
            "One plan in one fresh process. Runs differ from each other by more than the samples "
            "of one run do."
        ),
    ),
    ("p99", "The time that 99 % of the samples stayed under."),
    ("waste", "Committed bytes that hold no tokens."),
)

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
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Return *children* one after the other, escaped unless they are markup."""
    return Markup("".join(c if isinstance(c, Markup) else _escaped(c) for c in children))


def _escaped(text: str) -> str:
    """Return *text* without markup and without control characters, but with its lines."""
    return escape(printable_lines(text))


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# The policy forbids the browser to load anything or to run a script, also if a string slipped through.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def page(title: str, *body: str) -> str:
    """Return a whole HTML document.

    Args:
        title: What tells it from other pages: the command, the machine, the date.
        body: Of the page.
    """
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


def report(
    result: object,
    name: str,
    verdict: str,
    *body: str,
    command: Sequence[str],
    good: bool | None,
    title: Sequence[str | None],
    place: Sequence[str],
    reading: Iterable[str],
) -> str:
    """Return the page of a result: when and where, the verdict, the rest, and the document itself.

    Args:
        result: What ``vmtool.results`` describes.
        name: The command, such as ``stress``.
        verdict: The answer in one sentence, a number in it.
        body: Sections.
        command: The command line that made it.
        good: How the verdict looks; ``None`` is neither good nor bad.
        title: What tells it from other pages of the command, such as the machine and the date.
        place: The date and the machine, in words.
        reading: Paragraphs on how to read it.
    """
    document = encode(result, document_of(result).head(list(command)))
    about = ", ".join(filter(None, title))
    style = {True: "state good", False: "state bad", None: "state"}[good]
    return page(
        f"vmtool {name}: {about}" if about else f"vmtool {name}",
        tag("h1", f"vmtool {name}"),
        tag("p", ", ".join(place), class_="soft"),
        tag("p", verdict, class_=style),
        *body,
        details("How to read this", *(tag("p", text) for text in reading)),
        glossary(),
        download(f"vmtool-{name}.json", document),
        tag(
            "p", tag("code", shlex.join(command)), f", made by vmtool {__version__}", class_="soft"
        ),
    )


def section(heading: str, *content: str) -> Markup:
    """Return a heading and the content under it; nothing if there is no content."""
    if not any(content):
        return Markup()
    return tag("section", tag("h2", heading), *content)


def details(summary: str, *content: str) -> Markup:
    """Return *content* that is shown when the reader opens it."""
    return tag("details", tag("summary", summary), *content)


def download(name: str, document: str) -> Markup:
    """Return a link that saves *document*, which is in the page, as the file *name*."""
    data = b64encode(document.encode("utf-8")).decode("ascii")
    return tag(
        "p",
        tag("a", f"Download {name}", download=name, href=f"data:application/json;base64,{data}"),
        class_="soft",
    )


def glossary() -> Markup:
    """Return the glossary of every page, folded."""
    terms = [part for word, meaning in GLOSSARY for part in (tag("dt", word), tag("dd", meaning))]
    return details("Glossary", tag("dl", *terms))


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
    """Return names with their values; ``None`` is not available."""
    rows = [(name, "not available" if value is None else str(value)) for name, value in pairs]
    return table(("fact", "value"), rows, style="facts")


def figure(caption: str, chart: Markup, *, style: str | None = None) -> Markup:
    """Return a chart with its caption; nothing where there is nothing to draw."""
    if not chart:
        return Markup()
    return tag("figure", tag("figcaption", _breakable(caption)), chart, class_=style)


def _breakable(text: str) -> Markup:
    """Return *text* with places where a long name, such as ``a.b_c``, continues on the next line."""
    return Markup(re.sub("(?<=[._])", "<wbr>", _escaped(text)))


def check(good: bool | None, name: str, detail: str, hint: str | None = None) -> Markup:
    """Return one check: passed, failed, or (``None``) not done."""
    mark, style = {True: ("✓ ", "good"), False: ("✗ ", "bad"), None: ("- ", "soft")}[good]
    more = [tag("br"), tag("span", hint, class_="soft")] if hint and good is False else []
    return tag("li", tag("strong", join(mark, name), class_=style), ": ", detail, *more)


def checks(items: Sequence[Markup]) -> Markup:
    """Return a list of checks."""
    return tag("ul", *items, class_="checks") if items else Markup()


def grid(figures: Sequence[Markup]) -> Markup:
    """Return charts beside each other, as many as the page is wide for."""
    return tag("div", *figures, class_="grid") if any(figures) else Markup()
