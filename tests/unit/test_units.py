"""Sizes, counts and durations: exact parsing, and formatting that loses nothing it shows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.units import (
    align_down,
    align_up,
    format_duration,
    format_size,
    parse_count,
    parse_duration,
    parse_percent,
    parse_size,
    two_sizes,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("2MiB", 2097152),
        ("2MB", 2000000),
        ("2 mib", 2097152),
        (" 64KiB ", 65536),
        ("1.5KiB", 1536),
        ("0.5 GiB", 1 << 29),
        ("1.5kB", 1500),
        ("16EiB", None),
        ("18446744073709551615", (1 << 64) - 1),
        ("18446744073709551616", None),
        ("0.1KiB", None),
        ("-1", None),
        ("", None),
        ("MiB", None),
        ("1 XiB", None),
        ("1e9", None),
        ("1_000", None),
        ("0x10", None),
        ("1,000", None),
        ("١٢", None),
        ("9" * 5000, None),
        ("1." + "0" * 5000, None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_parse_size(text, nbytes):
    if nbytes is None:
        with pytest.raises(ValueError, match=r".+"):
            parse_size(text)
    else:
        assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "part"),
    [("75%", Fraction(3, 4)), ("75", Fraction(3, 4)), (" 0.1 % ", Fraction(1, 1000))],
)
def test_parse_percent(text, part):
    assert parse_percent(text) == part


@pytest.mark.parametrize(
    # The first two would be numbers of a hundred million digits.
    "text",
    ["1e99999999", "1e-99999999%", "1/3", "-5%", "nan", "", "%", "5%%", "5k", "9" * 5000],
)
def test_what_is_no_percentage_is_refused_in_few_words(text):
    with pytest.raises(ValueError, match="is not a percentage") as caught:
        parse_percent(text)
    assert len(str(caught.value)) < 120


def test_long_nonsense_is_not_repeated_whole():
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size("x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9" * 21 + "GiB", "is too large for a size"),
        ("1" + "0" * 5000, "is too large for a size"),
        (" 00" + "9" * 21 + ".5 kib ", "is too large for a size"),
        ("0" * 30 + "1", "is not a size"),
        ("9" * 21 + "foo", "is not a size"),
        ("9" * 21 + "GiB!", "is not a size"),
        ("9" * 21 + " " * 100_000 + "!", "is not a size"),
    ],
)
def test_a_number_of_many_digits_is_too_large_and_no_nonsense(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200


def test_an_unknown_unit_lists_the_valid_ones():
    with pytest.raises(ValueError, match=r"unknown unit 'Mi'.*kib.*mib"):
        parse_size("1Mi")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (4097, "4.001 KiB"),
        (2 << 20, "2 MiB"),
        (1000 << 20, "1000 MiB"),
        (1023 << 20, "1023 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        ((1 << 20) - 512, "1 MiB"),
        ((1 << 20) - 513, "1023 KiB"),
        (3 << 60, "3 EiB"),
        (-4096, "-4 KiB"),
    ],
)
def test_format_size(nbytes, text):
    assert format_size(nbytes) == text


@given(st.integers(0, (1 << 62)))
def test_format_size_shows_four_digits_of_the_truth(nbytes):
    number, unit = format_size(nbytes).split()
    factor = 1 << (10 * ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit))
    assert abs(float(number) * factor - nbytes) <= nbytes * 0.0006
    assert float(number) < 1024


@given(st.integers(1, 1023), st.sampled_from([0, 10, 20, 30, 40, 50]))
def test_a_whole_number_of_units_survives_the_round_trip(count, exponent):
    assert parse_size(format_size(count << exponent)) == count << exponent


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("32k", 32768), ("1M", 1 << 20), ("1.5k", 1536), ("1x", None), ("-3", None)],
)
def test_parse_count(text, count):
    if count is None:
        with pytest.raises(ValueError, match=r".+"):
            parse_count(text)
    else:
        assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5ms", 5_000_000),
        ("1.5s", 1_500_000_000),
        ("2", 2_000_000_000),
        ("1h", 3600 * 10**9),
        ("3µs", 3000),
        ("1m30s", 90 * 10**9),
        ("1d", 86400 * 10**9),
        ("1h30m5ms", 5400 * 10**9 + 5_000_000),
        ("30s1m", None),
        ("1s1s", None),
        ("1m30", None),
        ("0.1ns", None),
        ("1 day", None),
    ],
)
def test_parse_duration(text, ns):
    if ns is None:
        with pytest.raises(ValueError, match=r".+"):
            parse_duration(text)
    else:
        assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (182_000, "182 µs"),
        (1_210_000, "1.21 ms"),
        (999, "999 ns"),
        (999_499, "999 µs"),
        (999_600, "1.00 ms"),
        (12_340, "12.3 µs"),
        (9_996, "10.0 µs"),
        (0.5, "0.50 ns"),
        (90 * 10**9, "90.0 s"),
        (-1500, "-1.50 µs"),
    ],
)
def test_format_duration(ns, text):
    assert format_duration(ns) == text


@given(st.integers(0, 1 << 50), st.sampled_from([4096, 65536, 2 << 20, 3, 1]))
def test_alignment(value, granule):
    up, down = align_up(value, granule), align_down(value, granule)
    assert up % granule == down % granule == 0
    assert 0 <= up - value < granule
    assert 0 <= value - down < granule


def test_sizes_that_would_be_rounded_to_the_same_are_told_in_bytes():
    assert two_sizes(128 << 30, 1 << 20) == ("128 GiB", "1 MiB")
    assert two_sizes((256 << 20) + 1, 256 << 20) == ("268,435,457 bytes", "268,435,456 bytes")
