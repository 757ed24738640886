"""Old observations are ignored, whatever two clocks think of each other."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import AppSpec
from services.allocator.state import batch_ingestion
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.report_freshness import GRACE_NS, STALE_NS, ReportFreshness
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch

SECOND_NS = 1_000_000_000


@given(skew_ns=st.integers(-(10**15), 10**15), late_ns=st.integers(0, 10 * SECOND_NS))
def test_only_the_difference_to_the_fastest_counts(skew_ns, late_ns):
    node = ReportFreshness()

    assert node.is_fresh(skew_ns, 0)
    assert node.is_fresh(skew_ns + late_ns, 1) == (late_ns <= STALE_NS)


def test_a_burst_of_late_messages_is_refused_however_long_the_silence_before_it():
    node = ReportFreshness()
    node.is_fresh(5, 0)
    burst_ns = 3600 * SECOND_NS

    assert not any(node.is_fresh(burst_ns - sent, burst_ns + sent) for sent in range(0, 20_000_000, 1_000_000))
    assert node.is_fresh(5, burst_ns + SECOND_NS)


def test_a_clock_that_was_set_back_is_believed_after_a_while():
    node = ReportFreshness()
    node.is_fresh(0, 0)
    hour_ns = 3600 * SECOND_NS
    answers = [node.is_fresh(hour_ns, tick * PERIOD_NS) for tick in range(1, 50)]

    assert answers.index(True) == GRACE_NS // PERIOD_NS
    assert all(answers[answers.index(True) :])


def ingest(cluster, message, now_ns):
    batch_ingestion.ingest(cluster, [message], now_ns, START_NS + now_ns)


def usage(cluster):
    return cluster.rows.used_us.tolist()


def test_a_batch_that_was_under_way_for_long_changes_nothing():
    cluster = ClusterState()
    ingest(cluster, batch(0), 0)
    first = usage(cluster)
    ingest(cluster, batch(1, [replace_used(99_999)]), 5 * SECOND_NS)

    assert usage(cluster) == first
    assert cluster.counts.stale == 1


def test_a_false_report_far_ahead_silences_its_node_for_seconds_only():
    cluster = ClusterState()
    cluster.specs["shop"] = AppSpec(name="shop", cpu_limit=1, memory_limit=1 << 30)
    ingest(cluster, batch(0), 0)
    ingest(cluster, batch(1, report_seq=1 << 60, incarnation=1 << 60), PERIOD_NS)
    for tick in range(2, 80):
        ingest(cluster, batch(tick, [replace_used(tick)]), tick * PERIOD_NS)

    assert usage(cluster) == [79]
    assert 25 <= cluster.counts.out_of_order <= 35
    assert not cluster.rows.fenced.any(), "its orders have to be asked for anew"


def replace_used(used_us):
    return replace(Row(), used_us=used_us)
