"""What a reservation may change is checked in the range and in the whole process."""

import pytest

from vmtool.memory.reservation import Reservation
from vmtool.probes.reserve import PROCESS_TOLERANCE_BYTES, check_counters
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import GIB, MIB

BEFORE = {"address_space": 100 * MIB, "charge": 10 * MIB, "resident": 20 * MIB, "mappings": 90}
AFTER = {**BEFORE, "address_space": 100 * MIB + GIB, "mappings": 91}
INSIDE = {"address_space": GIB, "charge": 0, "resident": 0, "mappings": 1}


def outcomes(after=AFTER, inside=INSIDE, before=BEFORE):
    checks = check_counters(Reservation(1 << 40, GIB, 4096), before, after, inside)
    return {check.name.removeprefix("counters."): check.outcome for check in checks}


def test_addresses_and_nothing_else_pass():
    assert set(outcomes().values()) == {CheckOutcome.PASSED}


@pytest.mark.parametrize("counter", ["charge", "resident"])
def test_one_byte_in_the_range_fails(counter):
    assert outcomes(inside={**INSIDE, counter: 1})[counter] is CheckOutcome.FAILED


@pytest.mark.parametrize("counter", ["address_space", "charge", "resident"])
def test_the_whole_may_only_move_a_little(counter):
    slack = PROCESS_TOLERANCE_BYTES
    assert (
        outcomes(after={**AFTER, counter: AFTER[counter] + slack})[counter] is CheckOutcome.PASSED
    )
    assert (
        outcomes(after={**AFTER, counter: AFTER[counter] + slack + 1})[counter]
        is CheckOutcome.FAILED
    )


def test_a_range_that_joined_a_neighbour_is_still_one_area():
    assert outcomes(after={**AFTER, "mappings": 90})["mappings"] is CheckOutcome.PASSED


def test_an_unknown_counter_is_not_done():
    nothing = dict.fromkeys(BEFORE)
    assert set(outcomes(after=nothing, before=nothing, inside={}).values()) == {
        CheckOutcome.NOT_DONE
    }


@pytest.mark.parametrize(
    ("capacity", "grown", "passed"),
    [
        (GIB, 0, True),
        (GIB, 32 * MIB, True),  # the driver's own tables, or another process
        (GIB, -32 * MIB, True),
        (GIB, 65 * MIB, False),
        (2 * MIB, 2 * MIB, False),
    ],
)
def test_a_device_may_move_a_little_but_never_by_the_whole_range(capacity, grown, passed):
    before, after = {"device_memory": GIB}, {"device_memory": GIB + grown}
    (check,) = check_counters(Reservation(1 << 40, capacity, 2 * MIB), before, after, {})
    assert check.failed is not passed
