"""The search for the largest reservation is exact where tries allow, and bounded always."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vmtool.memory import open_backing
from vmtool.probes.limits import largest_reservation, search_ceiling
from vmtool.units import GIB


@settings(deadline=None)
@given(st.integers(0, (1 << 47) // 4096))
def test_the_exact_limit_is_found_within_64_tries(pages):
    limit = pages * 4096
    seen = []

    def works(nbytes):
        assert nbytes > 0
        assert nbytes % 4096 == 0
        seen.append(nbytes)
        return nbytes <= limit

    good, bad, tries = search_ceiling(works, unit=4096, tries=64)
    assert (good, bad) == (limit, limit + 4096)
    assert tries == len(seen) <= 64


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 34))
def test_nothing_beyond_the_largest_size_is_tried_and_something_always_is(most, limit):
    def works(nbytes):
        assert nbytes <= max(most, 4096)
        return nbytes <= limit

    good, _, _ = search_ceiling(works, unit=4096, tries=64, most=most)
    assert min(most, limit) < 8192 or good >= 4096


@given(st.integers(1, 20), st.integers(1, 1 << 46))
def test_tries_are_never_exceeded_and_the_answer_is_true_as_far_as_it_goes(tries, limit):
    seen = []

    def works(nbytes):
        seen.append(nbytes)
        return nbytes <= limit

    good, bad, used = search_ceiling(works, unit=4096, tries=tries)
    assert used == len(seen) <= tries
    assert good <= limit
    assert bad is None or bad > limit


def test_without_any_limit_the_search_ends_where_64_bits_do():
    good, bad, tries = search_ceiling(lambda _: True, unit=4096, tries=64)
    assert (good, bad) == (1 << 62, None)
    assert tries == 33


def test_a_unit_larger_than_the_first_size_is_kept():
    good, bad, _ = search_ceiling(lambda n: n <= 6 * GIB, unit=2 * GIB, tries=64)
    assert (good, bad) == (6 * GIB, 8 * GIB)


def test_the_host_really_grants_what_was_found_or_nearly():
    backing = open_backing()
    found = largest_reservation(backing)
    assert found.tries <= 64
    assert found.refused_bytes is None or found.error
    # Half of it leaves room for what else was mapped meanwhile.
    half = found.works_bytes // 2 // backing.granularity * backing.granularity
    backing.unreserve(backing.reserve(half))


def test_a_search_that_is_ended_says_how_far_it_came():
    def works(limit, last):
        seen = []

        def answer(nbytes):
            if len(seen) == last:
                return None
            seen.append(nbytes)
            return nbytes <= limit

        return answer

    assert search_ceiling(works(6 * GIB, 0), unit=4096, tries=64) == (0, None, 0)
    assert search_ceiling(works(6 * GIB, 2), unit=4096, tries=64) == (2 * GIB, None, 2)
    # 1, 2 and 4 work, 8 does not, 6 works.
    assert search_ceiling(works(6 * GIB, 5), unit=4096, tries=64) == (6 * GIB, 8 * GIB, 5)
