"""Leases never exceed a limit, are given back once, and leave each other alone."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmtool.errors import ExitCode, UsageError
from vmtool.memory.governor import BudgetError, Governor, Role, Tier


def used(governor, tier=Tier.HOST):
    return governor.ledger(tier).used_bytes


def test_a_lease_is_released_exactly_once():
    governor = Governor({Tier.HOST: 100})
    other = governor.lease(Tier.HOST, 10)
    lease = governor.lease(Tier.HOST, 60)
    lease.release()
    lease.release()
    lease.shrink(5)
    assert used(governor) == 10
    assert other.nbytes == 10


def test_a_refused_lease_changes_nothing_and_names_the_numbers():
    governor = Governor({Tier.HOST: 100})
    lease = governor.lease(Tier.HOST, 60)
    with pytest.raises(BudgetError) as caught:
        governor.lease(Tier.HOST, 41)
    error = caught.value
    assert (error.requested_bytes, error.used_bytes, error.limit_bytes) == (41, 60, 100)
    assert error.exit_code is ExitCode.REFUSED
    with pytest.raises(BudgetError):
        lease.grow(41)
    assert lease.nbytes == used(governor) == 60
    governor.lease(Tier.HOST, 40)
    assert governor.ledger(Tier.HOST).peak_bytes == 100


def test_lowering_a_limit_takes_nothing_but_stops_new_leases():
    governor = Governor({Tier.HOST: 100})
    lease = governor.lease(Tier.HOST, 80)
    governor.set_limit(Tier.HOST, 50)
    assert lease.nbytes == used(governor) == 80
    with pytest.raises(BudgetError):
        lease.grow(1)
    lease.shrink(40)
    lease.grow(10)
    with pytest.raises(BudgetError):
        lease.grow(1)
    governor.set_limit(Tier.HOST, None)
    lease.grow(1 << 40)


def test_tiers_are_apart():
    governor = Governor({Tier.HOST: 10, Tier.DEVICE: 20})
    governor.lease(Tier.HOST, 10)
    governor.lease(Tier.DEVICE, 20)
    governor.lease(Tier.DISK, 1 << 50)
    assert [used(governor, tier) for tier in (Tier.HOST, Tier.DEVICE)] == [10, 20]


def test_totals_do_not_exceed_what_platforms_count():
    governor = Governor()
    lease = governor.lease(Tier.HOST, (1 << 63) - 1)
    with pytest.raises(BudgetError):
        lease.grow(1)
    assert used(governor) == (1 << 63) - 1


def test_the_ledger_says_who_holds_what_for_which_role():
    governor = Governor()
    with governor.lease(Tier.HOST, 5, holder="a"), governor.lease(Tier.HOST, 7, role=Role.WEIGHTS):
        ledger = governor.ledger(Tier.HOST)
        assert ledger.by_role == {Role.KV_CACHE: 5, Role.WEIGHTS: 7}
        assert ledger.by_holder == {"a": 5, "": 7}
        assert ledger.limit_bytes is None
    assert governor.ledger(Tier.HOST).by_role == {}


def test_negative_bytes_are_refused():
    with pytest.raises(UsageError):
        Governor().lease(Tier.HOST, -1)
    with pytest.raises(UsageError):
        Governor().set_limit(Tier.HOST, -1)
    governor = Governor()
    with governor.lease(Tier.HOST, 5) as lease:
        with pytest.raises(UsageError, match="-1"):
            lease.grow(-1)
        lease.shrink(-1)
        assert (lease.nbytes, used(governor)) == (5, 5)


def test_a_released_lease_cannot_grow_outside_the_ledger():
    governor = Governor()
    lease = governor.lease(Tier.HOST, 5)
    lease.release()
    with pytest.raises(UsageError, match="released already"):
        lease.grow(1)
    assert used(governor) == 0


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "grow", "shrink", "release", "limit"]),
        st.integers(0, 60),
        st.integers(0, 4),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(OPERATIONS)
def test_new_leases_never_exceed_the_limit(operations):
    governor, leases, limit = Governor({Tier.HOST: 100}), [], 100
    for name, nbytes, which in operations:
        before = used(governor)
        lease = leases[which % len(leases)] if leases else None
        try:
            if name == "lease":
                leases.append(governor.lease(Tier.HOST, nbytes))
            elif name == "limit":
                governor.set_limit(Tier.HOST, limit := nbytes)
            elif lease is not None:
                getattr(lease, name)(*([] if name == "release" else [nbytes]))
        except UsageError:
            assert lease.released
        except BudgetError:
            assert used(governor) == before
        assert used(governor) == sum(lease.nbytes for lease in leases)
        assert used(governor) <= max(before, limit)


def test_threads_cannot_lose_or_invent_bytes():
    governor = Governor({Tier.HOST: 50})

    def work():
        lease = governor.lease(Tier.HOST)
        for _ in range(2000):
            try:
                lease.grow(20)
            except BudgetError:
                continue
            lease.shrink(20)
        lease.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used(governor) == 0
    assert governor.ledger(Tier.HOST).peak_bytes <= 50
