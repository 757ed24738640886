"""A store that answers nobody for seconds, as a cluster's does that has lost the server that led: owners go on."""

from __future__ import annotations

import pytest

from services.allocator.leases.lease_manager import LeaseManager, LeaseTimeouts, StoredLease
from tests.support.replica_lab import ReplicaLab

TTL_S = 2.0
WALL_MS = 1_000
RECOVERY_S = TTL_S + 3.5
"""After an interruption of everyone."""
APP = "shop"
APPS = [f"app{number}" for number in range(4)]


@pytest.fixture
def patient() -> LeaseManager:
    """An owner, just renewed at 10 s, with 12 s of patience with the store."""
    a = LeaseManager("a", LeaseTimeouts(TTL_S, store_outage_grace_s=12.0), announced={APP})
    a.renewed(10.0, 10.0)
    a.lease_read(APP, StoredLease("", 5, 3), 10.0)
    swap = a.swap(APP, 10.0, WALL_MS)
    assert swap is not None
    a.swap_stored(swap, 4, 10.0)
    assert a.may_decide(12.0)
    return a


def test_silence_alone_is_no_excuse(patient: LeaseManager) -> None:
    """Nothing was sent: the process stood still, and others may have taken over."""
    assert not patient.may_decide(12.1)


def test_a_pause_with_a_heartbeat_under_way_is_no_excuse() -> None:
    """The answer may have come in time: nobody was there to read it, and others may have taken over."""
    lab = ReplicaLab(apps=set(APPS), store_outage_grace_s=12.0)
    member = lab.start()
    lab.live(RECOVERY_S)
    member.holds_answers = True
    lab.live(0.6)  # one is sent every half second
    assert member.operations
    assert all(lab.owners().values())

    lab.loop.now_s += 6.0
    lab.settle()

    assert not any(lab.owners().values())
    member.holds_answers = False
    lab.live(RECOVERY_S)
    assert all(lab.owners().values())
    lab.close()


def test_a_store_that_answers_nothing_is_one_for_as_long_as_it_is_seen_to(patient: LeaseManager) -> None:
    for now_s in (11.5, 13.0, 14.5):
        patient.store_unreachable(now_s - 1.0, now_s)
        assert patient.may_decide(now_s + 1.9)
    assert not patient.may_decide(14.5 + 2.1)
    patient.store_unreachable(22.9, 23.9)
    assert patient.may_decide(24.0)  # 10 s, 2 to live and 12 of patience
    assert not patient.may_decide(24.1)


def test_an_agent_that_knows_a_successor_ends_it(patient: LeaseManager) -> None:
    patient.store_unreachable(11.5, 12.5)
    assert patient.may_decide(13.0)
    patient.report_stale_epoch(APP)
    assert not patient.may_decide(13.0)


def test_when_it_answers_again_the_lease_is_confirmed_first(patient: LeaseManager) -> None:
    patient.store_unreachable(11.5, 12.5)
    patient.renewed(16.0, 16.1)
    assert not patient.may_decide(16.1)
    patient.lease_read(APP, StoredLease("a", 1_000, 4), 16.2)
    swap = patient.swap(APP, 16.3, WALL_MS)
    assert swap is not None
    patient.swap_stored(swap, 5, 16.4)
    assert patient.may_decide(16.4)


def test_during_a_store_outage_owners_go_on() -> None:
    """A cluster that has lost the server that led needs 4 to 9 s for another one; nobody can take a lease meanwhile."""
    lab = ReplicaLab(apps=set(APPS), store_outage_grace_s=12.0)
    for _ in range(3):
        lab.start()
    lab.live(RECOVERY_S)
    before, owned = lab.owners(), [dict(member.owned) for member in lab.members]
    assert all(len(owners) == 1 for owners in before.values())

    lab.down = True
    for _ in range(36):
        lab.live(0.25)
        assert lab.owners() == before
    lab.mend()
    lab.live(RECOVERY_S)

    assert lab.owners() == before
    assert [dict(member.owned) for member in lab.members] == owned  # the epochs, too
    lab.close()


def test_but_not_for_ever() -> None:
    lab = ReplicaLab(apps=set(APPS), store_outage_grace_s=12.0)
    lab.start()
    lab.live(RECOVERY_S)

    lab.down = True
    lab.live(13.0)
    assert all(lab.owners().values())
    lab.live(1.5)  # 2 s to live and 12 of patience, less half a second since the last heartbeat
    assert not any(lab.owners().values())
    lab.mend()
    lab.live(RECOVERY_S)
    assert all(lab.owners().values())
    lab.close()
