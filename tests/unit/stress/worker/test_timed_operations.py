"""Recorders keep every sample in a histogram, a bounded list of medians, and no list of samples."""

import statistics

from vmtool.stress.worker.timed_operations import BATCH, MAX_ROUNDS, PhaseRecorder, join_phases


def _record(rounds):
    recorder = PhaseRecorder()
    for samples in rounds:
        recorder.samples.extend(samples)
        recorder.total_bytes += 10 * len(samples)
        recorder.end_round()
    return recorder


def test_samples_of_all_rounds_are_in_the_histogram():
    result = _record([[10, 20], [30], [40, 50, 60]]).result("commit")
    assert result.histogram.count == 6
    assert (result.histogram.min_ns, result.histogram.max_ns) == (10, 60)
    assert result.total_bytes == 60
    assert result.summary.median_ns == 35


def test_each_round_has_its_median_and_empty_rounds_have_none():
    result = _record([[1, 2, 3], [], [7]]).result("touch")
    assert result.round_medians_ns == (2, 7)


def test_a_round_in_progress_counts_but_has_no_median_yet():
    recorder = _record([[5]])
    recorder.samples.append(9)
    result = recorder.result("release")
    assert result.histogram.count == 2
    assert result.round_medians_ns == (5,)


def test_hours_of_rounds_stay_bounded_and_keep_the_trend():
    medians = _record([[n] for n in range(10_000)]).result("commit").round_medians_ns
    assert MAX_ROUNDS // 2 <= len(medians) <= MAX_ROUNDS
    assert list(medians) == sorted(medians)
    assert abs(statistics.mean(medians) - 5_000) < 150


def test_folding_empties_the_list_that_the_loop_appends_to():
    recorder = PhaseRecorder()
    recorder.samples.extend(range(BATCH))
    recorder.fold()
    assert recorder.samples == []
    assert recorder.result("commit").histogram.count == BATCH


def test_forgetting_leaves_nothing_of_the_warm_up():
    recorder = _record([[1, 2, 3]])
    recorder.clear()
    result = recorder.result("commit")
    assert result.histogram.count == result.total_bytes == 0
    assert result.round_medians_ns == ()


def test_joined_phases_have_the_samples_of_all():
    parts = [_record([[1, 2], [3]]).result("commit"), _record([[100]] * 200).result("commit")]
    joined = join_phases("commit", parts)
    assert joined.histogram.count == 203
    assert joined.summary.max_ns == 100
    assert joined.total_bytes == 2030
    assert len(joined.round_medians_ns) <= MAX_ROUNDS
