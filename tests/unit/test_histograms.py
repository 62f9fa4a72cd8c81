"""Histograms lose at most one bucket of a percentile."""

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.histograms import P999_SAMPLES, Histogram, bucket_start, merged, summarize

_LATENCIES = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 5000), min_size=1, max_size=200)


def _data(samples):
    histogram = Histogram()
    histogram.extend(samples)
    return histogram.data()


@given(_LATENCIES)
def test_exact_figures_are_exact(samples):
    data = _data(samples)
    assert data.count == len(samples) == sum(count for _, count in data.buckets)
    assert (data.min_ns, data.max_ns, data.sum_ns) == (min(samples), max(samples), sum(samples))


@given(_LATENCIES, st.sampled_from([0, 10, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_bucket_of_the_sorted_samples(samples, percent):
    ordered = sorted(samples)
    rank = percent / 100 * (len(ordered) - 1)
    low, high = ordered[int(rank)], ordered[min(int(rank) + 1, len(ordered) - 1)]
    got = _data(samples).percentile(percent)
    assert low - low / 64 - 1 <= got <= high + high / 64 + 1


@given(st.lists(st.integers(0, 127), min_size=1, max_size=100))
def test_the_median_of_small_values_is_the_textbook_one(samples):
    assert _data(samples).percentile(50) == round(statistics.median(samples))


def test_the_median_of_two_samples_lies_between_them():
    assert _data([100, 121]).percentile(50) == 110  # 110.5, to even


@given(st.integers(0, 2**63 - 1))
def test_a_value_lies_in_its_own_bucket(value):
    ((index, count),) = _data([value]).buckets
    assert count == 1
    assert bucket_start(index) <= value < bucket_start(index + 1)


@given(_LATENCIES, _LATENCIES)
def test_merging_is_the_same_as_recording_everything_in_one(first, second):
    assert merged([_data(first), _data(second)]) == _data(first + second)


@given(_LATENCIES)
def test_log2_buckets_hold_every_sample_without_a_gap(samples):
    rows = _data(samples).log2_buckets()
    assert sum(count for _, _, count in rows) == len(samples)
    assert all(a[1] == b[0] for a, b in pairwise(rows))
    assert rows[0][0] <= min(samples)
    assert max(samples) < rows[-1][1]


def test_the_summary_agrees_with_the_statistics_module():
    samples = [random.Random(1).randrange(1000, 9000) for _ in range(500)]
    summary = summarize(_data(samples))
    assert summary.mean_ns == round(statistics.mean(samples))
    assert summary.stddev_ns == pytest.approx(statistics.stdev(samples), abs=1)


def test_p999_needs_ten_thousand_samples():
    assert summarize(_data([5] * (P999_SAMPLES - 1))).p999_ns is None
    assert summarize(_data([5] * P999_SAMPLES)).p999_ns == 5


def test_an_empty_histogram_has_no_figures():
    summary = summarize(_data([]))
    assert summary.samples == 0
    assert summary.median_ns is summary.stddev_ns is None
    assert _data([]).log2_buckets() == ()
