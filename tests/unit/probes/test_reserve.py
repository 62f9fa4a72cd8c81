"""What a reservation may change is decided apart for the range and for the whole."""

import pytest

from vmtool.memory.backing import Reservation
from vmtool.probes.reserve import PROCESS_TOLERANCE_BYTES, check_ledgers
from vmtool.units import GIB, MIB

BEFORE = {"address space": 100 * MIB, "charge": 10 * MIB, "resident": 20 * MIB, "mappings": 90}
AFTER = {**BEFORE, "address space": 100 * MIB + GIB, "mappings": 91}
INSIDE = {"address space": GIB, "charge": 0, "resident": 0, "mappings": 1}


def verdicts(after=AFTER, inside=INSIDE, before=BEFORE):
    checks = check_ledgers(Reservation(1 << 40, GIB, 4096), before, after, inside)
    return {check.ledger: check.passed for check in checks}


def test_addresses_and_nothing_else_pass():
    assert set(verdicts().values()) == {True}


@pytest.mark.parametrize("ledger", ["charge", "resident"])
def test_one_byte_in_the_range_fails(ledger):
    assert verdicts(inside={**INSIDE, ledger: 1})[ledger] is False


@pytest.mark.parametrize("ledger", ["address space", "charge", "resident"])
def test_the_whole_may_move_a_little_and_no_more(monkeypatch, ledger):
    slack = PROCESS_TOLERANCE_BYTES
    assert verdicts(after={**AFTER, ledger: AFTER[ledger] + slack})[ledger] is True
    assert verdicts(after={**AFTER, ledger: AFTER[ledger] + slack + 1})[ledger] is False


def test_a_range_that_joined_a_neighbour_is_still_one_area():
    assert verdicts(after={**AFTER, "mappings": 90})["mappings"] is True


def test_what_is_not_told_is_neither_passed_nor_failed():
    nothing = dict.fromkeys(BEFORE)
    assert set(verdicts(after=nothing, before=nothing, inside={}).values()) == {None}


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
    before, after = {"device memory": GIB}, {"device memory": GIB + grown}
    (check,) = check_ledgers(Reservation(1 << 40, capacity, 2 * MIB), before, after, {})
    assert check.passed is passed
