"""The report of ``vmtool fleet``: the answer, machines that differ, and the spread of the measures."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

from vmtool.report.console import paragraph, show
from vmtool.report.page import facts as fact_table
from vmtool.report.page import figure, grid, join, report, section, tag
from vmtool.report.table import table
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.report.page import Markup
    from vmtool.results.fleet import (
        FleetBaseline,
        FleetResult,
        Group,
        Outlier,
        Reason,
        Split,
        Spread,
    )


#: Outliers and problems that the text lists without ``--all``.
_SHOWN: Final = 20
_MOST_VALUES: Final = 6
#: Kinds of problem that do not mean that a source gave no result.
_NOT_MISSING: Final = frozenset({"checks", "ambiguous", "copy"})
#: Why a group was not judged, by what its ``undecided`` says.
_UNDECIDED: Final = {
    "few": "fewer than 8 machines that are alike",
    "single": "this takes 2 runs or more of each machine",
    "baseline": "the baseline has no machines like these",
    "no measures": "the results have no measures",
}
#: Of a picture of how machines are spread: bars, the units that one is wide, and how high all are.
_BARS: Final = 24
_WIDE: Final = 10
_HIGH: Final = 60
#: Outliers that the page names under a picture.
_NAMED: Final = 12
_HOW: Final = (
    "Each chart shows how many machines have each value, the lowest on the left; an orange bar contains an outlier."
    " Machines are compared with those that are alike, by the mean of their runs. A machine differs if such a large difference is improbable among the others (Tukey's biweight; Benjamini and Hochberg"
    " over {tests} tests: at most {rate} of the outliers are expected to be due to chance) and the difference is at least {threshold}. Facts are"
    " ranked by how well they separate machines; that is not proof of a cause."
)


def to_text(result: FleetResult, console: Console, *, everything: bool = False) -> None:
    """Print the report; with *everything* each machine and each problem."""
    show(console, _parts(result, everything=everything))


def _parts(result: FleetResult, *, everything: bool) -> Iterator[RenderableType]:
    yield paragraph(answer_text(result), style="bold")
    for group in result.groups:
        yield paragraph(_group_text(group))
    lines = list(_findings(result))
    if lines:
        yield ""
    for line in lines if everything else lines[:_SHOWN]:
        yield paragraph(line, indent="  ")
    if len(lines) > _SHOWN and not everything:
        yield paragraph(f"and {count_of(len(lines) - _SHOWN, 'more line')}; --all shows them")
    for group in result.groups:
        if not group.decided and group.facts and len(group.hosts) > 1:
            yield ""
            yield paragraph(f"Facts that differ in {_group_name(group)}:")
            yield table(
                ("fact", "values"),
                _fact_rows(group, most=None if everything else _MOST_VALUES),
                left=2,
            )
    if result.problems:
        yield ""
        problems = result.problems if everything else result.problems[:_SHOWN]
        yield table(("source", "problem"), [(p.source, p.problem) for p in problems], left=2)
        if len(result.problems) > len(problems):
            yield f"and {len(result.problems) - len(problems):,} more; --all shows them"
    if everything:
        for group in result.groups:
            yield ""
            yield paragraph(f"Machines of {_group_name(group)}:")
            yield _machines(group)


def answer_text(result: FleetResult) -> str:
    """Return the answer in a sentence."""
    hosts = sorted({each.host for group in result.groups for each in group.outliers})
    splits = sum(bool(group.splits) for group in result.groups)
    judged = sum(group.judged for group in result.groups)
    parts = []
    if result.failed:
        parts.append(f"failed checks on {_named_hosts(result.failed)}")
    if hosts:
        verb = "differs" if len(hosts) == 1 else "differ"
        of = count_of(result.machines, "machine")
        parts.append(f"{len(hosts):,} of {of} {verb}: {_named_hosts(hosts)}")
    if splits:
        parts.append(
            f"{count_of(splits, 'group')} {'splits' if splits == 1 else 'split'} into parts"
        )
    if judged and not hosts and not splits:
        parts.append(_alike(judged, baseline=result.baseline))
    if not result.machines:
        parts.append("no results")
    elif not judged:
        of = count_of(result.machines, "machine")
        parts.append(f"not decided: {count_of(result.results, 'result')} of {of}")
    elif judged < result.machines:
        parts.append(f"{count_of(result.machines - judged, 'machine')} not decided")
    missing = sum(problem.kind not in _NOT_MISSING for problem in result.problems)
    if missing:
        parts.append(f"no result from {count_of(missing, 'source')}")
    return ("" if result.complete else "interrupted: ") + "; ".join(parts)


def _alike(judged: int, *, baseline: bool) -> str:
    if baseline:
        subject = "the machine is" if judged == 1 else f"all {judged:,} machines are"
        return f"{subject} like those of the baseline"
    return f"all {judged:,} machines are alike"


def _named_hosts(hosts: Sequence[str], most: int = 5) -> str:
    """Return the names of the first *most* hosts, and how many more there are."""
    more = f" and {len(hosts) - most:,} more" if len(hosts) > most else ""
    return ", ".join(hosts[:most]) + more


def _group_name(group: Group) -> str:
    """Return what the machines of a group have in common."""
    known = group.alike
    parts = [
        known.get("device"),
        known.get("system.cpu_model"),
        f"{known['system.cpus']} CPUs" if "system.cpus" in known else None,
        known.get("memory.total_bytes"),
    ]
    usual = {"device", "system.cpu_model", "system.cpus", "memory.total_bytes"}
    others = [f"{name} {value}" for name, value in known.items() if name not in usual]
    return ", ".join(part for part in (*parts, *others) if part) or "machines"


def not_saved(group: Group, baseline: FleetBaseline) -> str | None:
    """Return what of *group* is not in *baseline*, if anything that was judged or asked for."""
    saved = next((g for g in baseline.groups if dict(g.alike) == dict(group.alike)), None)
    if saved is None:
        why = _UNDECIDED.get(group.undecided, "each of its measures splits it into parts")
        return f"{_group_name(group)} is not saved: {why}"
    if group.splits:
        count = count_of(len(group.splits), "measure")
        return f"{_group_name(group)} is saved without {count} that split it into parts"
    return None


def _group_text(group: Group) -> str:
    """Return a line about a group."""
    split = {each.measure for each in group.splits}
    tested = [spread for spread in group.spreads if spread.tested]
    text = f"{count_of(len(group.hosts), 'machine')} ({_group_name(group)})"
    if group.unnamed:
        known = "is known" if len(group.unnamed) == 1 else "are known"
        count = f"{len(group.unnamed):,} {known} by file name only"
        text += f", perhaps fewer: {count}, with the same facts as another"
    if not group.decided:
        return f"{text}: not decided, {_UNDECIDED[group.undecided]}"
    text += f": {count_of(len(tested), 'measure')}"
    scales = sorted(s.scale for s in tested if s.logarithmic and s.measure not in split)
    if scales:
        text += f", varying by {100 * scales[len(scales) // 2]:.1f} % between machines (median)"
    if group.single_runs:
        text += f"; {count_of(len(group.single_runs), 'machine')} with one run: not decided"
    once = [s for s in group.spreads if s.single and not s.tested]
    if once:
        text += f"; {count_of(len(once), 'measure')} with one value per machine: not decided"
    return text


def _findings(result: FleetResult) -> Iterator[str]:
    for group in result.groups:
        yield from _finding_lines(group)


def _finding_lines(group: Group) -> Iterator[str]:
    """Yield a line for each way in which a group splits, then for each machine that differs."""
    yield from _split_lines(group)
    for _, found in groupby(group.outliers, key=lambda outlier: outlier.host):
        yield from _host_lines(list(found))


def _host_lines(outliers: Sequence[Outlier]) -> Iterator[str]:
    first = outliers[0]
    outliers = sorted(outliers, key=lambda each: not each.measure.endswith("median_ns"))
    text = f"{first.host}: {'; '.join(_difference(outlier) for outlier in outliers[:3])}"
    if len(outliers) > 3:
        text += f"; and {count_of(len(outliers) - 3, 'more measure')}"
    yield f"{text}. {_why_text(first.reasons)}"


def _difference(outlier: Outlier) -> str:
    """Return how a machine differs, such as ``stress.fixed.commit.median_ns 2.1x slower``."""
    name = outlier.measure
    if outlier.ratio is None:
        return (
            f"{name} {_value_text(name, outlier.value)}, usually {_value_text(name, outlier.usual)}"
        )
    ratio = outlier.ratio
    word = "higher" if ratio > 1 else "lower"
    if name.endswith("_ns"):
        word = "slower" if ratio > 1 else "faster"
    elif name.endswith("_per_s"):
        word = "faster" if ratio > 1 else "slower"
    return f"{name} {max(ratio, 1 / ratio):.2f}x {word} ({_value_text(name, outlier.value)})"


def _why_text(reasons: Sequence[Reason], *, several: bool = False) -> str:
    """Return which facts separate a machine, or with *several* machines, from the others."""
    them = "them" if several else "it"
    unique = [reason for reason in reasons if reason.separation > 1 - 1e-9]
    if len(unique) == 1:
        reason = unique[0]
        which = "that separates them" if several else "that it does not share"
        return f"The only fact {which}: {reason.fact} {reason.value} (others: {reason.usual})"
    if not reasons:
        return f"No recorded fact separates {them} from the others"
    shown = [f"{r.fact} {r.value} (mostly {r.usual})" for r in reasons[:3]]
    return f"Facts that separate {them} best: {'; '.join(shown)}"


def _split_lines(group: Group) -> Iterator[str]:
    """Yield a line for each way in which a group splits, with the measures that show it."""
    ways: dict[frozenset[tuple[str, ...]], list[Split]] = {}
    for split in group.splits:
        ways.setdefault(frozenset(part.hosts for part in split.parts), []).append(split)
    for splits in ways.values():
        parts = splits[0].parts
        # The same one as in the result where several are as large: it alone has no reasons.
        most = max(parts, key=lambda part: len(part.hosts))
        fewer = sorted((p for p in parts if p is not most), key=lambda part: len(part.hosts))
        sizes = [f"{len(part.hosts):,} machines ({_named_hosts(part.hosts)})" for part in fewer]
        text = f"{_part_count(len(parts))}, {', '.join(sizes)} and {len(most.hosts):,} others: "
        order = [part.hosts for part in (*fewer, most)]
        text += "; ".join(_split_text(split, order) for split in splits[:3])
        if len(splits) > 3:
            text += f"; and {count_of(len(splits) - 3, 'more measure')}"
        why = [_why_text(part.reasons, several=True) for part in fewer]
        if len(why) > 1:
            why = [
                f"{_named_hosts(part.hosts, 1)}: {each[0].lower()}{each[1:]}"
                for part, each in zip(fewer, why, strict=True)
            ]
        yield f"{text}. {'. '.join(why)}"


def _part_count(number: int) -> str:
    return "Two parts" if number == 2 else f"{number} parts"


def _split_text(split: Split, order: Sequence[tuple[str, ...]]) -> str:
    """Return what is usual in each part, in the *order* of their hosts."""
    usual = {part.hosts: part.usual for part in split.parts}
    *before, last = (_value_text(split.measure, usual[hosts]) for hosts in order)
    least, most = min(usual.values()), max(usual.values())
    ratio = f" ({most / least:.2f}x)" if least > 0 else ""
    return f"{split.measure} {', '.join(before)} and {last}{ratio}"


def _value_text(measure: str, value: float) -> str:
    """Return *value* with the unit of its measure."""
    if measure.endswith("_ns"):
        return format_duration(value)
    if measure.endswith("_bytes") and value >= 0:
        return format_size(round(value))
    if measure.endswith("bytes_per_s"):
        return f"{format_size(round(value))}/s"
    if measure.endswith(".per_cycle"):
        bytes_ = not measure.endswith("mappings.per_cycle")
        return f"{format_size(round(value)) if bytes_ else f'{value:,.4g}'} per cycle"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _fact_rows(group: Group, *, most: int | None = _MOST_VALUES) -> list[tuple[str, str]]:
    """Return the facts that differ in a group, each with at most *most* of its values."""
    rows = []
    for fact in group.facts:
        values = list(fact.machines.items())
        shown = values[:most]
        text = ", ".join(f"{value} ({count})" for value, count in shown)
        rows.append((fact.fact, text + (", ..." if len(values) > len(shown) else "")))
    return rows


def _machines(group: Group) -> RenderableType:
    spreads = [spread for spread in group.spreads if spread.tested] or list(group.spreads)
    rows = [
        (host, *(_cell(spread, at) for spread in spreads)) for at, host in enumerate(group.hosts)
    ]
    return table(("machine", *(spread.measure for spread in spreads)), rows)


def _cell(spread: Spread, at: int) -> str:
    value = spread.values[at]
    return "" if value is None else _value_text(spread.measure, value)


def to_markdown(result: FleetResult) -> str:
    """Return the report as Markdown."""
    lines = [f"**{answer_text(result)}**", ""]
    lines += [f"* {_escaped(_group_text(group))}" for group in result.groups]
    findings = list(_findings(result))
    if findings:
        lines += ["", *(f"* {_escaped(line)}" for line in findings)]
    for group in result.groups:
        if group.facts:
            lines += ["", f"Facts that differ in {_escaped(_group_name(group))}:", ""]
            lines += ["| fact | values |", "|---|---|"]
            lines += [
                f"| {_escaped(fact)} | {_escaped(values)} |" for fact, values in _fact_rows(group)
            ]
    if result.problems:
        lines += ["", "| source | problem |", "|---|---|"]
        lines += [f"| {_escaped(p.source)} | {_escaped(p.problem)} |" for p in result.problems]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def to_html(result: FleetResult, command: Sequence[str]) -> str:
    """Return the page that *command* made."""
    bad = result.outliers or result.failed or any(group.splits for group in result.groups)
    decided = any(group.decided for group in result.groups)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return report(
        result,
        "fleet",
        answer_text(result),
        *(_group_section(group) for group in result.groups),
        *([_problems(result)] if result.problems else []),
        command=command,
        good=False if bad else True if decided else None,
        title=[textwrap.shorten(answer_text(result), 80, placeholder="..."), made],
        place=[made, count_of(result.machines, "machine")],
        reading=[_HOW.format(**_how(result))],
    )


def _how(result: FleetResult) -> dict[str, str]:
    return {
        "tests": f"{result.tests:,}",
        "rate": f"{100 * result.false_discovery_rate:.0f} %",
        "threshold": f"{100 * result.threshold:.0f} %",
    }


def _group_section(group: Group) -> Markup:
    named: dict[str, list[str]] = {}
    for outlier in group.outliers:
        named.setdefault(outlier.measure, []).append(outlier.host)
    findings = list(_finding_lines(group))
    content = [tag("p", _group_text(group))]
    if findings:
        content.append(tag("ul", *(tag("li", line) for line in findings)))
    # What differs stands first.
    spreads = sorted(group.spreads, key=lambda spread: spread.measure not in named)
    content.append(grid([_figure(s, group.hosts, named.get(s.measure, [])) for s in spreads]))
    if group.facts:
        content.append(tag("h3", "Facts that differ"))
        content.append(fact_table(_fact_rows(group, most=2 * _MOST_VALUES)))
    return section(_group_name(group), *content)


def _figure(spread: Spread, hosts: Sequence[str], named: Sequence[str]) -> Markup:
    values = [value for value in spread.values if value is not None]
    if not values:
        return join()
    low, high, usual = (
        _value_text(spread.measure, value) for value in (min(values), max(values), spread.usual)
    )
    words = f"{low} to {high}, usually {usual}" if low != high else f"{low} everywhere"
    if spread.tested and spread.logarithmic:
        words += f", varying by {100 * spread.scale:.1f} % between machines"
    elif spread.single and not spread.tested:
        words += "; one value per machine: not decided"
    lines = [tag("div", words, class_="soft")]
    if named:
        lines.append(
            tag("div", tag("strong", "Outliers: ", class_="bad"), _named_hosts(named, _NAMED))
        )
    return figure(spread.measure, join(_histogram(spread, hosts, named), *lines))


def _histogram(spread: Spread, hosts: Sequence[str], named: Sequence[str]) -> Markup:
    """Return how many machines have which values; bars with an outlier look different."""
    known = {host: v for host, v in zip(hosts, spread.values, strict=True) if v is not None}
    low, high = min(known.values()), max(known.values())
    bars: list[list[str]] = [[] for _ in range(_BARS)]
    for host, value in known.items():
        at = int((value - low) / (high - low) * _BARS) if high > low else _BARS // 2
        bars[min(at, _BARS - 1)].append(host)
    most = max(map(len, bars))
    step = (high - low) / _BARS
    drawn = []
    for at, here in enumerate(bars):
        if here:
            ends = [_value_text(spread.measure, low + step * (at + more)) for more in (0, 1)]
            height = max(_HIGH * len(here) / most, 1.5)
            words = f"{count_of(len(here), 'machine')}, {' to '.join(ends)}: {_named_hosts(here)}"
            style = "first" if set(here).isdisjoint(named) else "second"
            drawn.append(
                tag(
                    "rect",
                    tag("title", words),
                    x=_WIDE * at,
                    y=_HIGH - height,
                    width=_WIDE - 1,
                    height=height,
                    class_=style,
                )
            )
    line = tag("line", x1=0, x2=_WIDE * _BARS, y1=_HIGH, y2=_HIGH, class_="axis")
    size = f"0 0 {_WIDE * _BARS} {_HIGH + 1}"
    label = f"machines by {spread.measure}"
    return tag("svg", *drawn, line, viewBox=size, role="img", aria_label=label)


def _problems(result: FleetResult) -> Markup:
    lines = (
        tag("li", tag("strong", problem.source), f": {problem.problem}")
        for problem in result.problems
    )
    return section("Problems", tag("ul", *lines))
