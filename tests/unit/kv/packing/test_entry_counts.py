"""How many entries a tensor holds for a length, and the lengths for so many entries."""

import pytest

from vmtool.kv.packing.entry_counts import EntryCount


@pytest.mark.parametrize(("cap", "every"), [(None, 1), (None, 3), (10, 1), (10, 4)])
def test_entries_and_their_inverse_agree(cap, every):
    entries = EntryCount(cap, every)
    for tokens in range(30):
        longest = entries.longest(entries.at(tokens))
        if longest is None:
            assert entries.at(tokens) == entries.at(99)
        else:
            assert entries.at(longest) == entries.at(tokens) < entries.at(longest + 1)


@pytest.mark.parametrize(("cap", "every"), [(None, 1), (None, 3), (10, 1), (10, 4)])
def test_sums_over_lengths_are_those_of_each_length(cap, every):
    entries = EntryCount(cap, every)
    for tokens in range(15):
        for more in range(15):
            lengths = range(tokens + 1, tokens + more + 1)
            assert entries.over(tokens, more) == sum(entries.at(length) for length in lengths)
