"""Slopes of counters, time to a limit, and conditions on both."""

import math
import random

import pytest

from vmtool.errors import UsageError
from vmtool.inspect.trends_and_conditions import evaluate, parse_condition, trends
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.inspect import LimitUse, Sample
from vmtool.units import MIB


def _samples(values, counter="resident_bytes", step_ns=10**9):
    return [Sample(at_ns=i * step_ns, **{counter: value}) for i, value in enumerate(values)]


def test_a_leak_of_one_mib_a_second_grows_and_says_when_the_limit_is_met():
    samples = _samples([100 * MIB + i * MIB for i in range(30)])
    limit = LimitUse("memory.max", "resident_bytes", 129 * MIB, 189 * MIB, None, "group")

    (trend,) = trends(samples, [limit])

    assert trend.grows
    assert trend.per_second == pytest.approx(MIB)
    assert (trend.limit, trend.full_in_s) == ("memory.max", pytest.approx(60))


def test_noise_around_a_level_does_not_grow():
    for seed in range(200):
        chance = random.Random(seed)
        samples = _samples([100 * MIB + chance.randrange(-64, 64) * 4096 for _ in range(30)])
        assert not any(trend.grows for trend in trends(samples, []))


def test_a_warm_up_step_is_no_growth():
    samples = _samples([50 * MIB] * 3 + [90 * MIB] * 27)

    assert not any(trend.grows for trend in trends(samples, []))


def test_a_heap_that_warms_up_is_no_growth():
    # It takes ever less, so that the pace of the later half comes to little.
    samples = _samples([100 * MIB + int(40 * MIB * (1 - 0.7**i)) for i in range(30)])

    (trend,) = trends(samples, [])

    assert trend.low > 0
    assert not trend.grows
    assert trend.growth > trend.growth_least


@pytest.mark.parametrize("seconds", [25, 31, 60, 600])
@pytest.mark.parametrize(
    "level",
    [
        lambda share: 1 - math.exp(-4 * share),
        lambda share: 1 - math.exp(-5 * share),
        lambda share: 1 - math.exp(-8 * share),
        lambda share: min(share, 0.6),
        lambda share: min(share, 0.8),
    ],
    ids=["slow", "middling", "fast", "60 % of the time", "80 % of the time"],
)
def test_a_heap_that_comes_to_its_level_during_the_watch_is_no_growth(level, seconds):
    chance = random.Random(seconds)
    noise = 16 + seconds // 3  # more of it is no matter to many samples
    samples = _samples(
        [
            100 * MIB + int(level(i / seconds) * 400 * MIB) + chance.randrange(-noise, noise) * 4096
            for i in range(seconds)
        ]
    )

    (trend,) = trends(samples, [])

    assert trend.low > 0
    assert not trend.grows


@pytest.mark.parametrize(
    "lost",
    [
        lambda at, _: at,
        lambda at, _: at // 5 * 5,
        lambda at, _: at + at % 7 * 4,
        lambda at, chance: at + chance.gauss(0, 2),
        lambda at, _: at + 100 * (1 - math.exp(-at / 6)),
    ],
    ids=["steady", "in steps", "below a saw", "below noise", "after a warm-up"],
)
def test_a_leak_is_found_in_half_a_minute_whatever_is_above_it(lost):
    for seed in range(20):
        chance = random.Random(seed)
        samples = _samples([200 * MIB + int(lost(i + seed, chance) * MIB) for i in range(31)])

        (trend,) = trends(samples, [])

        assert trend.grows


def test_most_leaks_at_random_times_are_found_in_half_a_minute():
    found = 0
    for seed in range(100):
        chance, level, levels = random.Random(seed), 200 * MIB, []
        for _ in range(31):
            level += sum(chance.random() < 0.25 for _ in range(4)) * MIB
            levels.append(level)
        found += trends(_samples(levels), [])[0].grows

    assert found >= 90


@pytest.mark.parametrize("period", [12, 15, 20])
def test_a_heap_between_collections_is_no_growth(period):
    # It has risen and fallen at least three times.
    for phase in range(period):
        samples = _samples([200 * MIB + (i + phase) % period * 4 * MIB for i in range(61)])

        assert not any(trend.grows for trend in trends(samples, []))


def test_use_that_wanders_around_a_level_is_no_growth():
    found = 0
    for seed in range(100):
        chance, away, levels = random.Random(seed), 0.0, []
        for _ in range(61):
            away = 0.9 * away + chance.gauss(0, 4)
            levels.append(int((200 + away) * MIB))
        found += any(trend.grows for trend in trends(_samples(levels), []))

    assert found <= 5  # 16 with an interval that takes each sample for one of its own


def test_a_reading_that_is_repeated_counts_once():
    # Areas are read every ten samples here: 60 samples with six readings.
    samples = _samples([2048 + i // 10 * 8 + i // 20 % 2 for i in range(60)], counter="areas")
    read_at = {"areas": {i * 10**9 for i in range(0, 60, 10)}}
    few = {"areas": {i * 10**9 for i in range(0, 50, 10)}}
    condition = parse_condition("areas.slope<1/s")

    (each,), (once,) = trends(samples, []), trends(samples, [], read_at)

    assert (each.samples, once.samples) == (60, 6)
    assert once.low < each.low
    assert once.high > each.high
    assert evaluate(condition, samples, None, read_at).outcome is CheckOutcome.PASSED
    assert evaluate(condition, samples, None, few).values["samples"] == 5


def test_threads_are_bounded_by_what_is_left_of_their_group_or_user():
    samples = _samples([10 + i for i in range(30)], counter="threads")
    limits = [
        LimitUse("RLIMIT_NPROC", "user_tasks", 500, 1000, None, "user"),
        LimitUse("pids.max", "group_tasks", 40, 100, None, "group"),
    ]

    (trend,) = trends(samples, limits)

    assert (trend.limit, trend.full_in_s) == ("pids.max", pytest.approx(60))


def test_what_never_changes_has_no_trend():
    assert trends(_samples([MIB] * 30), []) == ()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("resident.slope<2MiB/s", CheckOutcome.PASSED),
        ("resident.slope<30MiB/min", CheckOutcome.FAILED),
        ("resident.slope<1GiB/h", CheckOutcome.FAILED),
        ("resident.max<1GiB", CheckOutcome.PASSED),
        ("resident<10MiB", CheckOutcome.FAILED),
        ("areas<100", CheckOutcome.NOT_DONE),
        ("threads.slope<1/min", CheckOutcome.NOT_DONE),
        ("cpu.slope<600ms/s", CheckOutcome.PASSED),
        ("cpu.slope<400ms/s", CheckOutcome.FAILED),
        ("minor-faults.slope<200/s", CheckOutcome.FAILED),
    ],
)
def test_conditions_on_a_leak(text, outcome):
    samples = [
        Sample(
            i * 10**9, resident_bytes=(100 + i) * MIB, cpu_ns=i * 5 * 10**8, minor_faults=256 * i
        )
        for i in range(30)
    ]

    assert evaluate(parse_condition(text), samples).outcome is outcome


def test_a_slope_whose_interval_is_on_both_sides_is_not_proven():
    chance = random.Random(3)
    samples = _samples([100 * MIB + i * MIB + chance.randrange(-20, 20) * MIB for i in range(30)])

    check = evaluate(parse_condition("resident.slope<1MiB/s"), samples)

    assert check.outcome is CheckOutcome.NOT_DONE
    assert check.values["reason"] == "not proven"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resident",
        "resident<",
        "resident.slope<1MiB",
        "resident<1MiB/s",
        "nothing<1",
        "resident==1MiB",
    ],
)
def test_what_is_no_condition_is_wrong_usage(text):
    with pytest.raises(UsageError):
        parse_condition(text)
