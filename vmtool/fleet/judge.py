"""Which machines of a fleet differ from those like them, and which facts separate them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from vmtool.fleet.machines import ALIKE, Fleet, Machine, same_amount, settle_amounts
from vmtool.fleet.robust_statistics import biweight, discoveries, two_sided_p
from vmtool.fleet.value_clusters import find_clusters
from vmtool.results.fleet import (
    BaselineGroup,
    BaselineMeasure,
    FactSpread,
    FleetBaseline,
    FleetResult,
    Group,
    Outlier,
    Part,
    Reason,
    Split,
    Spread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


#: Fewer machines than this say nothing of what is usual.
_LEAST_MACHINES: Final = 8
#: The part of outliers that may be so by chance.
_FALSE_DISCOVERIES: Final = 0.01
#: A scale below this part is taken as this: measures are not so exact.
_LEAST_SCALE: Final = 0.002
_MOST_REASONS: Final = 5
#: A fact separates if it does for this part more of the machines than of the others; of one machine,
#: any value is shared by all, so that it must be rarer elsewhere.
_LEAST_SEPARATION: Final = 0.5
_LEAST_SEPARATION_OF_ONE: Final = 0.8


@dataclass(frozen=True, slots=True)
class _Usual:
    """What is usual for a measure, on the scale of the judgement."""

    location: float
    scale: float
    runs_variance: float | None
    logarithmic: bool
    machines: int

    def deviation(self, runs: int) -> float:
        """Return the standard deviation of the mean of *runs* runs of a new machine."""
        variance = self.scale**2
        if self.runs_variance is not None:
            # The scale is that of machines with typical runs; other numbers of runs vary otherwise.
            variance = max(variance, self.runs_variance / runs)
        return max(math.sqrt(variance), self.floor()) * math.sqrt(1 + 1 / self.machines)

    def floor(self) -> float:
        """Return the least scale that measures can have."""
        floor = _LEAST_SCALE if self.logarithmic else _LEAST_SCALE * abs(self.location)
        return max(floor, 1e-12)

    def value(self, location: float | None = None) -> float:
        """Return a *location*, by default the usual one, as a value of the measure."""
        found = self.location if location is None else location
        return math.exp(found) if self.logarithmic else found


@dataclass(frozen=True, slots=True)
class _Test:
    """One machine and measure to be judged."""

    group: int
    host: str
    measure: str
    mean: float
    usual: _Usual
    p_value: float
    large: bool


def judge(
    fleet: Fleet,
    *,
    by: Sequence[str] = (),
    threshold: float = 0.1,
    baseline: FleetBaseline | None = None,
    complete: bool = True,
) -> FleetResult:
    """Return the machines in groups, with those that differ and what may explain it.

    Args:
        fleet: The machines.
        by: Facts to group by, instead of the processor, memory and device.
        threshold: The smallest difference that counts, as a part.
        baseline: What is usual, instead of what is here.
        complete: Whether all was gathered.
    """
    groups = _grouped(fleet.machines.values(), by)
    usual: list[dict[str, _Usual]] = []
    splits: list[list[Split]] = []
    tests: list[_Test] = []
    for at, (alike, machines) in enumerate(groups):
        saved = _saved(baseline, alike)
        found, parted, own = _usual_of(machines, threshold, saved)
        if baseline is not None and saved is None:
            found, parted, own = {}, [], {}
        usual.append(found)
        splits.append(parted)
        tests.extend(_tests(at, machines, found, own, threshold))
    significant = discoveries([test.p_value for test in tests], _FALSE_DISCOVERIES)
    outliers = [test for at, test in enumerate(tests) if at in significant and test.large]
    made = []
    for at, (alike, machines) in enumerate(groups):
        mine = [test for test in outliers if test.group == at]
        mine_tested = [test for test in tests if test.group == at]
        saved = _saved(baseline, alike)
        unknown = baseline is not None and saved is None
        known = None if saved is None else saved.facts
        made.append(
            _group(
                alike, machines, usual[at], splits[at], mine, mine_tested, known, unknown=unknown
            )
        )
    return FleetResult(
        complete=complete,
        baseline=baseline is not None,
        threshold=threshold,
        false_discovery_rate=_FALSE_DISCOVERIES,
        results=fleet.results,
        machines=len(fleet.machines),
        tests=len(tests),
        groups=tuple(made),
        problems=tuple(fleet.problems),
    )


def baseline_of(fleet: Fleet, *, by: Sequence[str] = (), threshold: float = 0.1) -> FleetBaseline:
    """Return what is usual in the groups of *fleet* that have enough machines.

    A measure that splits a group has nothing usual and is left out.
    """
    groups = []
    for alike, machines in _grouped(fleet.machines.values(), by):
        usual, splits, _ = _usual_of(machines, threshold, None)
        split = {each.measure for each in splits}
        measures = tuple(
            BaselineMeasure(
                measure,
                found.value(),
                found.scale,
                found.logarithmic,
                None if found.runs_variance is None else math.sqrt(found.runs_variance),
                found.machines,
            )
            for measure, found in usual.items()
            if measure not in split
        )
        if measures:
            groups.append(BaselineGroup(alike, measures, _usual_facts(machines)))
    return FleetBaseline(tuple(groups))


# ---- groups -----------------------------------------------------------------------------------


def _grouped(
    machines: Iterable[Machine], by: Sequence[str]
) -> list[tuple[dict[str, str], list[Machine]]]:
    """Return the machines with the same facts, the largest group first."""
    groups: dict[tuple[str, ...], list[Machine]] = {}
    names = tuple(by) or ALIKE
    machines = list(machines)
    settle_amounts(machines)
    for machine in machines:
        key = tuple(machine.facts.get(name, "") for name in names)
        groups.setdefault(key, []).append(machine)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (
            {name: value for name, value in zip(names, key, strict=True) if value},
            sorted(found, key=lambda machine: machine.host),
        )
        for key, found in ordered
    ]


def _saved(baseline: FleetBaseline | None, alike: Mapping[str, str]) -> BaselineGroup | None:
    if baseline is None:
        return None
    for group in baseline.groups:
        if group.alike.keys() == alike.keys() and all(
            same_amount(value, alike[name]) for name, value in group.alike.items()
        ):
            return group
    return None


def _usual_facts(machines: Sequence[Machine]) -> dict[str, str]:
    return {fact: values.most_common(1)[0][0] for fact, values in _fact_values(machines).items()}


def _fact_values(machines: Iterable[Machine]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for machine in machines:
        for fact, value in machine.facts.items():
            found.setdefault(fact, Counter())[value] += 1
    return found


# ---- what is usual ----------------------------------------------------------------------------


def _usual_of(
    machines: Sequence[Machine], threshold: float, saved: BaselineGroup | None
) -> tuple[dict[str, _Usual], list[Split], dict[str, dict[str, _Usual]]]:
    """Return what is usual for each measure of enough machines, and the measures that split them.

    The last is, of a measure that splits them, what is usual in the part of each machine.
    """
    if saved is not None:
        known = {
            each.measure: _Usual(
                math.log(each.usual) if each.logarithmic else each.usual,
                each.scale,
                None if each.runs_scale is None else each.runs_scale**2,
                each.logarithmic,
                each.machines,
            )
            for each in saved.measures
        }
        return known, [], {}
    usual: dict[str, _Usual] = {}
    splits: list[Split] = []
    own: dict[str, dict[str, _Usual]] = {}
    for measure in _measures(machines):
        having = [machine for machine in machines if machine.runs.get(measure)]
        repeated = [machine for machine in having if len(machine.runs[measure]) > 1]
        if len(repeated) < _LEAST_MACHINES:
            continue
        logarithmic = all(value > 0 for machine in having for value in machine.runs[measure])
        means = [_mean(machine.runs[measure], logarithmic=logarithmic) for machine in repeated]
        variances = [_variance(m.runs[measure], logarithmic=logarithmic) for m in repeated]
        freedom = median([len(machine.runs[measure]) - 1 for machine in repeated])
        # The median of a chi-squared is about its mean times (1 - 2/9k)^3 (Wilson and Hilferty).
        runs_variance = median(variances) / (1 - 2 / (9 * freedom)) ** 3
        errors = [
            math.sqrt(variance / len(machine.runs[measure]))
            for machine, variance in zip(repeated, variances, strict=True)
        ]
        all_of_them = _Usual(*biweight(means), runs_variance, logarithmic, len(repeated))
        parts = find_clusters(
            means,
            errors,
            all_of_them.floor(),
            partial(_large, usual=all_of_them, threshold=threshold),
        )
        found = _usual_of_parts(means, parts, all_of_them)
        if len(parts) == 1:
            usual[measure] = found[0]
            continue
        usual[measure] = all_of_them
        splits.append(_split(measure, repeated, parts, found))
        own[measure] = {
            machine.host: min(found, key=lambda part: abs(part.location - mean))
            for machine, mean in zip(repeated, means, strict=True)
        }
    return usual, splits, own


def _usual_of_parts(
    means: Sequence[float], parts: Sequence[Sequence[int]], of_all: _Usual
) -> list[_Usual]:
    """Return what is usual in each part; one of few machines has at least the common scale."""
    found = [biweight([means[at] for at in part]) for part in parts]
    counts = [len(part) for part in parts]
    squares = sum([n * scale**2 for n, (_, scale) in zip(counts, found, strict=True)])
    common = math.sqrt(squares / sum(counts))
    return [
        replace(
            of_all,
            location=location,
            scale=scale if count >= _LEAST_MACHINES else max(scale, common),
            machines=count,
        )
        for count, (location, scale) in zip(counts, found, strict=True)
    ]


def _measures(machines: Sequence[Machine]) -> list[str]:
    return sorted({measure for machine in machines for measure in machine.runs})


def _mean(values: Sequence[float], *, logarithmic: bool) -> float:
    return fmean([math.log(value) for value in values] if logarithmic else values)


def _variance(values: Sequence[float], *, logarithmic: bool) -> float:
    found = [math.log(value) for value in values] if logarithmic else list(values)
    mean = fmean(found)
    return sum([(value - mean) ** 2 for value in found]) / (len(found) - 1)


def _split(
    measure: str,
    machines: Sequence[Machine],
    parts: Sequence[Sequence[int]],
    usual: Sequence[_Usual],
) -> Split:
    members = [[machines[at] for at in part] for part in parts]
    largest = max(members, key=len)
    values, count = _fact_values(largest), len(largest)
    return Split(
        measure,
        tuple(
            Part(
                found.value(),
                tuple(sorted(machine.host for machine in part)),
                () if part is largest else tuple(reasons(part, values, count)),
            )
            for found, part in zip(usual, members, strict=True)
        ),
    )


# ---- tests ------------------------------------------------------------------------------------


def _tests(
    group: int,
    machines: Sequence[Machine],
    usual: Mapping[str, _Usual],
    own: Mapping[str, Mapping[str, _Usual]],
    threshold: float,
) -> Iterator[_Test]:
    """Yield every machine and measure that can be judged, in a split group by the nearest part."""
    for measure, of_all in usual.items():
        for machine in machines:
            found = own.get(measure, {}).get(machine.host, of_all)
            runs = machine.runs.get(measure, ())
            if len(runs) < 2 or (found.logarithmic and min(runs) <= 0):
                continue
            mean = _mean(runs, logarithmic=found.logarithmic)
            distance = mean - found.location
            yield _Test(
                group,
                machine.host,
                measure,
                mean,
                found,
                _p_value(distance, runs, found),
                large=_large(distance, found, threshold),
            )


def _p_value(distance: float, runs: Sequence[float], usual: _Usual) -> float:
    """Return how probable so large a *distance* is for the mean of a machine like the others."""
    deviation, freedom = usual.deviation(len(runs)), 0.7 * (usual.machines - 1)
    if not usual.logarithmic:
        # Most machines may have the same value, 0 say: then one run of a machine is no evidence.
        own = math.sqrt(_variance(runs, logarithmic=False) / len(runs))
        if own > deviation:
            deviation, freedom = own, min(freedom, len(runs) - 1)
    return two_sided_p(abs(distance) / deviation, freedom)


def _large(distance: float, usual: _Usual, threshold: float) -> bool:
    if usual.logarithmic:
        return abs(distance) >= math.log1p(threshold)
    return abs(distance) >= threshold * abs(usual.location)


def _group(
    alike: Mapping[str, str],
    machines: Sequence[Machine],
    usual: Mapping[str, _Usual],
    splits: Sequence[Split],
    outliers: Sequence[_Test],
    tests: Sequence[_Test],
    saved: Mapping[str, str] | None,
    *,
    unknown: bool,
) -> Group:
    tested = Counter(test.measure for test in tests)
    judged = {test.host for test in tests}
    facts = _fact_values(machines)
    count = len(machines)
    by_host = {machine.host: machine for machine in machines}
    explained: dict[str, tuple[Reason, ...]] = {}
    different = {test.host for test in outliers}
    rest = [machine for machine in machines if machine.host not in different]
    # Of the others, those that were measured in the same way: the rest says nothing, and may be the
    # same machine under another name.
    others: dict[str, tuple[dict[str, Counter[str]], int]] = {}
    for test in outliers:
        kind = test.measure.partition(".")[0]
        if test.host in explained:
            continue
        if saved is not None:
            others[kind] = {fact: Counter([value]) for fact, value in saved.items()}, 1
        elif kind not in others:
            like = [m for m in rest if any(name.startswith(f"{kind}.") for name in m.runs)]
            others[kind] = _fact_values(like), len(like)
        explained[test.host] = tuple(reasons([by_host[test.host]], *others[kind]))
    single = [
        machine.host
        for machine in machines
        if machine.runs and max(map(len, machine.runs.values())) == 1
    ]
    undecided = ""
    if not judged:
        having = [machine for machine in machines if machine.runs]
        enough = saved is not None or len(having) >= _LEAST_MACHINES
        undecided = "baseline" if unknown else "no measures" if not having else "few"
        if enough and not unknown:
            undecided = "single"
    return Group(
        alike=alike,
        hosts=tuple(by_host),
        decided=bool(judged),
        undecided=undecided,
        judged=len(judged),
        single_runs=tuple(single),
        unnamed=_unnamed(machines),
        spreads=tuple(_spread(measure, machines, usual, tested) for measure in _measures(machines)),
        outliers=tuple(
            Outlier(
                host=test.host,
                measure=test.measure,
                value=test.usual.value(test.mean),
                usual=test.usual.value(),
                ratio=math.exp(test.mean - test.usual.location) if test.usual.logarithmic else None,
                p_value=test.p_value,
                reasons=explained[test.host],
            )
            for test in sorted(outliers, key=lambda test: (test.host, test.p_value))
        ),
        splits=tuple(splits),
        facts=tuple(
            FactSpread(fact, _with_missing(values, count))
            for fact, values in sorted(facts.items())
            if len(values) > 1 or values.total() < count
        ),
    )


def _unnamed(machines: Sequence[Machine]) -> tuple[str, ...]:
    """Return machines that may be the same as another: no result names them, and facts are equal.

    Results of different commands have different facts; those that all of these have are compared.
    """
    unnamed = [machine for machine in machines if not machine.named]
    if not unnamed:
        return ()
    common = set.intersection(*({*machine.facts} for machine in unnamed)) - {"vmtool"}
    names = sorted(name for name in common if not name.startswith("settings."))
    keys = {m.host: tuple(m.facts.get(name) for name in names) for m in machines}
    alike = Counter(keys.values())
    return tuple(machine.host for machine in unnamed if alike[keys[machine.host]] > 1)


def _with_missing(values: Counter[str], count: int) -> dict[str, int]:
    found = dict(values.most_common())
    if values.total() < count:
        found["-"] = count - values.total()
    return found


def _spread(
    measure: str,
    machines: Sequence[Machine],
    usual: Mapping[str, _Usual],
    tested: Mapping[str, int],
) -> Spread:
    found = usual.get(measure)
    every = [value for machine in machines for value in machine.runs.get(measure, ())]
    logarithmic = found.logarithmic if found is not None else all(value > 0 for value in every)
    values = [
        _back(_mean(machine.runs[measure], logarithmic=logarithmic), logarithmic=logarithmic)
        if machine.runs.get(measure) and (not logarithmic or min(machine.runs[measure]) > 0)
        else None
        for machine in machines
    ]
    if found is not None:
        location, scale = found.value(), found.scale
    else:
        known = [value for value in values if value is not None]
        location, scale = median(known), 0.0
    variance = None if found is None else found.runs_variance
    return Spread(
        measure,
        location,
        scale,
        logarithmic,
        None if variance is None else math.sqrt(variance),
        tested.get(measure, 0),
        sum(len(machine.runs.get(measure, ())) == 1 for machine in machines),
        tuple(values),
    )


def _back(mean: float, *, logarithmic: bool) -> float:
    return math.exp(mean) if logarithmic else mean


# ---- why --------------------------------------------------------------------------------------


def reasons(
    machines: Sequence[Machine], others: Mapping[str, Counter[str]], count: int
) -> list[Reason]:
    """Return the facts that separate *machines* from *count* others, the best first.

    Args:
        machines: The machines that differ.
        others: How often each value of each fact is among the others.
        count: How many others there are.

    A fact that has a value of its own on many of the others, such as a name, separates less well. Of
    facts that separate as well, those that only some results record come last.
    """
    if not count:
        return []
    found = []
    mine = _fact_values(machines)
    least = _LEAST_SEPARATION if len(machines) > 1 else _LEAST_SEPARATION_OF_ONE
    for fact in mine.keys() | others.keys():
        values = mine.get(fact, Counter())
        theirs = others.get(fact, Counter())
        value, number = values.most_common(1)[0] if values else ("-", 0)
        number = number or len(machines) - values.total()
        elsewhere = theirs[value] if value != "-" else count - theirs.total()
        single = sum(times == 1 for times in theirs.values())
        elsewhere = max(elsewhere, single if single > 1 else 0)
        separation = number / len(machines) - elsewhere / count
        if separation >= least:
            usual = theirs.most_common(1)[0][0] if theirs.total() else "-"
            found.append(Reason(fact, value, usual, separation))
    found.sort(key=lambda each: (-each.separation, "-" in {each.value, each.usual}, each.fact))
    return found[:_MOST_REASONS]
