"""Membership: every rule may be asked again, refuses with its reason, and keeps the view whole (laws 6, 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varlog.metarepo.membership import rules as rules
from varlog.metarepo.membership.rules import UNUSED_IDS_MAX, Members
from varlog.model.cluster import ClusterView, Grouping, Ordering, StorageNode, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    InvalidRequest,
    PreconditionFailed,
    StaleEpoch,
    TrimBeyondTail,
    UnknownLogStream,
    UnknownTopic,
    VarlogError,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.limits import BATCH_ENTRIES_MAX, TERM_JUMP_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import STRIPE_SIZE

ONE, TWO, THREE = NodeID(1), NodeID(2), NodeID(3)
TOPIC, LS = TopicID(1), LogStreamID(1)
NOBODY: tuple[NodeID, ...] = ()


def empty() -> Members:
    return Members(ClusterView(ClusterID(1), revision=1))


def with_nodes(*nodes: NodeID) -> Members:
    members = empty()
    for node in nodes:
        members = rules.register_node(members, node, f"n{node}:1", ("/data",), NOBODY)
    return members


def with_stream() -> Members:
    """Two nodes, topic `orders` with one sealed stream on both."""
    members, topic = rules.register_topic(with_nodes(ONE, TWO), "orders", Ordering.COMMITTED)
    members, log_stream = rules.new_log_stream_id(members)
    members, _ = rules.register_log_stream(members, topic.topic, log_stream, (ONE, TWO))
    return members


def running() -> Members:
    return rules.unseal_stream(with_stream(), LS, Epoch(1))[0]


# --- Nodes -------------------------------------------------------------------------------------------------------------


def test_registering_a_node_again_changes_nothing() -> None:
    members = with_nodes(TWO, ONE)
    assert [found.node for found in members.view.nodes] == [ONE, TWO]
    assert rules.register_node(members, ONE, "n1:1", ("/data",), (ONE, TWO)) is members


def test_a_node_may_move_while_the_one_at_its_old_address_is_gone() -> None:
    moved = rules.register_node(with_nodes(ONE), ONE, "elsewhere:9", ("/data",), NOBODY)
    assert moved.view.node(ONE) == StorageNode(ONE, "elsewhere:9", ("/data",))


def test_a_second_node_with_a_living_ones_id_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="storage node 1 is alive at n1:1"):
        rules.register_node(with_nodes(ONE), ONE, "elsewhere:9", ("/data",), (ONE,))


def test_a_living_nodes_address_is_not_given_to_another() -> None:
    with pytest.raises(PreconditionFailed, match="n1:1 is the address of storage node 1, which is alive"):
        rules.register_node(with_nodes(ONE), TWO, "n1:1", ("/data",), (ONE,))


def test_a_living_node_may_get_new_volumes() -> None:
    grown = rules.register_node(with_nodes(ONE), ONE, "n1:1", ("/data", "/more"), (ONE,))
    assert grown.view.node(ONE) == StorageNode(ONE, "n1:1", ("/data", "/more"))


@pytest.mark.parametrize(("node", "address"), [(0, "n:1"), (-4, "n:1"), (2**31, "n:1"), (1, "")])
def test_an_impossible_node_is_refused(node: int, address: str) -> None:
    with pytest.raises(InvalidRequest):
        rules.register_node(empty(), NodeID(node), address, (), NOBODY)


def test_a_node_with_replicas_stays_registered() -> None:
    with pytest.raises(PreconditionFailed, match="storage node 2 holds replicas of log streams 1"):
        rules.unregister_node(with_stream(), TWO)
    without = rules.unregister_topic(with_stream(), TOPIC)
    assert [found.node for found in rules.unregister_node(without, TWO).view.nodes] == [ONE]
    assert rules.unregister_node(without, THREE) is without


# --- Topics ------------------------------------------------------------------------------------------------------------


def test_an_existing_topic_is_returned_as_it_is() -> None:
    members, topic = rules.register_topic(empty(), "orders", Ordering.COMMITTED)
    assert rules.register_topic(members, "orders", Ordering.COMMITTED) == (members, topic)
    with pytest.raises(PreconditionFailed, match="its ordering is committed, not sequenced"):
        rules.register_topic(members, "orders", Ordering.SEQUENCED)


@pytest.mark.parametrize("name", ["", ".hidden", "two words", "a/b", "x" * 101, "naïve"])
def test_a_topic_name_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="topic name"):
        rules.register_topic(empty(), name, Ordering.COMMITTED)


def test_a_sequenced_topic_remembers_its_stripes() -> None:
    members, topic = rules.register_topic(
        empty(), "orders", Ordering.SEQUENCED, stripe_size=16, grouping=Grouping.NODE
    )
    assert (topic.sequenced, topic.stripe_size, topic.grouping) == (True, 16, Grouping.NODE)
    assert rules.register_topic(members, "orders", Ordering.SEQUENCED) == (members, topic)
    with pytest.raises(PreconditionFailed, match="with stripes of 16 positions, not 17"):
        rules.register_topic(members, "orders", Ordering.SEQUENCED, stripe_size=17)
    assert rules.register_topic(empty(), "orders", Ordering.SEQUENCED)[1].stripe_size == STRIPE_SIZE
    for unit in (-1, BATCH_ENTRIES_MAX + 1):
        with pytest.raises(InvalidRequest, match="consecutive positions"):
            rules.register_topic(empty(), "orders", Ordering.SEQUENCED, stripe_size=unit)


def test_a_stream_of_a_sequenced_topic_is_not_sealed_or_moved_here() -> None:
    """Its projection says who serves it."""
    members, topic = rules.register_topic(with_nodes(ONE, TWO), "orders", Ordering.SEQUENCED)
    members, log_stream = rules.new_log_stream_id(members)
    members, stream = rules.register_log_stream(members, topic.topic, log_stream, (ONE, TWO))
    assert (stream.state, stream.epoch) == (StreamState.SEALED, Epoch(0))
    refused: list[Callable[[], object]] = [
        lambda: rules.seal_stream(members, LS, LLSN(1)),
        lambda: rules.unseal_stream(members, LS, Epoch(0)),
        lambda: rules.set_sealed_by_admin(members, LS, True),
        lambda: rules.set_replicas(members, LS, Epoch(0), (TWO,)),
    ]
    for ask in refused:
        with pytest.raises(PreconditionFailed, match="belongs to the sequenced topic 'orders'"):
            ask()


def test_a_topic_leaves_with_its_streams_and_its_id_is_not_used_again() -> None:
    members = rules.unregister_topic(with_stream(), TOPIC)
    assert (members.view.topics, members.view.streams) == ((), ())
    assert rules.unregister_topic(members, TOPIC) is members
    assert rules.register_topic(members, "orders", Ordering.COMMITTED)[1].topic == TopicID(2)


def test_trimming_goes_up_to_the_tail_and_never_back() -> None:
    """Law 9."""
    members = rules.trim_topic(with_stream(), TOPIC, GLSN(5), GLSN(9))
    assert members.view.topics[0].trimmed == 5
    for already in (0, 3, 5):
        assert rules.trim_topic(members, TOPIC, GLSN(already), GLSN(9)) is members
    with pytest.raises(TrimBeyondTail) as refusal:
        rules.trim_topic(members, TOPIC, GLSN(10), GLSN(9))
    assert (refusal.value.position, refusal.value.newest) == (10, 9)
    with pytest.raises(InvalidRequest):
        rules.trim_topic(members, TOPIC, GLSN(-1), GLSN(9))
    with pytest.raises(UnknownTopic):
        rules.trim_topic(members, TopicID(8), GLSN(1), GLSN(9))


# --- Log streams -----------------------------------------------------------------------------------------------


def test_a_new_stream_is_sealed_and_empty_in_epoch_1() -> None:
    (stream,) = with_stream().view.streams
    assert (stream.state, stream.epoch, stream.sealed_end) == (StreamState.SEALED, 1, 1)
    assert stream.primary == ONE


def test_registering_a_stream_again_changes_nothing_and_differently_is_refused() -> None:
    members = with_stream()
    assert rules.register_log_stream(members, TOPIC, LS, (ONE, TWO))[0] is members
    with pytest.raises(PreconditionFailed, match="log stream 1 is registered for topic 1 with replicas"):
        rules.register_log_stream(members, TOPIC, LS, (TWO, ONE))


@pytest.mark.parametrize(
    ("topic", "log_stream", "replicas", "error"),
    [
        (9, 2, (1,), UnknownTopic),
        (1, 2, (), InvalidRequest),
        (1, 2, (1, 1), InvalidRequest),
        (1, 2, (1, 3), PreconditionFailed),
        (1, 2, tuple(range(1, 18)), InvalidRequest),
        (1, 5, (1,), PreconditionFailed),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    topic: int, log_stream: int, replicas: tuple[NodeID, ...], error: type[VarlogError]
) -> None:
    members, _ = rules.new_log_stream_id(with_stream())
    with pytest.raises(error):
        rules.register_log_stream(members, TopicID(topic), LogStreamID(log_stream), replicas)


def test_the_id_of_a_deleted_stream_is_never_registered_again() -> None:
    """Its data may still lie on disks: another stream there would meet it."""
    members, topic = rules.register_topic(
        rules.unregister_topic(with_stream(), TOPIC), "new", Ordering.COMMITTED
    )
    with pytest.raises(PreconditionFailed, match="log stream id 1 was not assigned, or was used before"):
        rules.register_log_stream(members, topic.topic, LS, (ONE, TWO))


def test_a_manager_that_keeps_failing_does_not_fill_the_repository() -> None:
    members, newest = rules.new_log_stream_id(empty())
    for _ in range(UNUSED_IDS_MAX + 5):
        members, newest = rules.new_log_stream_id(members)
    assert len(members.unused) == UNUSED_IDS_MAX and members.unused[-1] == newest


def test_a_new_id_does_not_make_a_new_view() -> None:
    members = with_stream()
    assert rules.new_log_stream_id(members)[0].view is members.view


# --- Seal and unseal --------------------------------------------------------------------------------


def test_sealing_begins_a_new_epoch_once_and_keeps_its_position() -> None:
    """R-SEAL-3, law 6: it returns the last ordered position; asked again, with whatever position, it returns
    the first seal."""
    members, sealed = rules.seal_stream(running(), LS, LLSN(42))
    assert (sealed.state, sealed.epoch, sealed.sealed_end) == (StreamState.SEALED, 2, 42)
    assert rules.seal_stream(members, LS, LLSN(99)) == (members, sealed)


def test_only_the_present_epoch_is_unsealed() -> None:
    """Law 7."""
    members, _ = rules.seal_stream(running(), LS, LLSN(42))
    with pytest.raises(StaleEpoch):
        rules.unseal_stream(members, LS, Epoch(1))
    with pytest.raises(PreconditionFailed, match="epoch 3 was never begun"):
        rules.unseal_stream(members, LS, Epoch(3))
    members, stream = rules.unseal_stream(members, LS, Epoch(2))
    assert (stream.state, stream.epoch, stream.sealed_end) == (StreamState.RUNNING, 2, 42)
    assert rules.unseal_stream(members, LS, Epoch(2)) == (members, stream)


def test_a_stream_that_does_not_exist_is_unknown() -> None:
    with pytest.raises(UnknownLogStream):
        rules.seal_stream(empty(), LS, LLSN(1))
    with pytest.raises(UnknownLogStream):
        rules.unseal_stream(empty(), LS, Epoch(1))


def test_the_manager_is_set_once() -> None:
    members = rules.set_manager(empty(), "m:1", True)
    assert (members.view.manager_address, members.view.auto_create_topics) == ("m:1", True)
    assert rules.set_manager(members, "m:1", True) is members


def test_views_after_a_loss_are_newer_than_all_that_were_lost() -> None:
    """Of a copy that was put back twice: the first time two topics were stopped, the second time one."""
    copy = running()
    copy, _ = rules.register_topic(copy, "more", Ordering.COMMITTED)
    begun = copy.view.revision
    term, seen = 3, 3
    first = rules.raise_term(copy, term, seen)
    for topic in (TOPIC, TopicID(2)):
        least = rules.revision_after_loss(begun, seen + 1)
        first = rules.stop_topic(first, topic, "a node knows better", GLSN(9), revision=least)
    again = rules.raise_term(copy, term, seen + 1)
    assert again.view.revision > first.view.revision > begun
    # A store that has lost no term: what began before it is below as well.
    least = rules.revision_after_loss(begun, 1)
    stopped = rules.stop_topic(copy, TOPIC, "a node knows better", GLSN(9), revision=least)
    assert stopped.view.revision == begun + rules.LOST_REVISIONS_MAX


def test_a_term_that_nobody_can_have_reached_leaves_room_for_revisions() -> None:
    members = empty()
    for jump in range(1, 100):
        seen = jump * TERM_JUMP_MAX
        members = rules.raise_term(members, seen - TERM_JUMP_MAX, seen)
    assert members.view.revision < 1 << 63


# --- All of them, at random --------------------------------------------------------------------------------------------------

SMALL = st.integers(1, 4)
OPERATIONS = st.one_of(
    st.tuples(st.just("register_node"), SMALL, st.sampled_from("ab"), st.just(()), st.just(NOBODY)),
    st.tuples(st.just("unregister_node"), SMALL),
    st.tuples(st.just("register_topic"), st.sampled_from(["x", "y"]), st.just(Ordering.COMMITTED)),
    st.tuples(st.just("unregister_topic"), SMALL),
    st.tuples(st.just("trim_topic"), SMALL, st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("new_log_stream_id")),
    st.tuples(st.just("register_log_stream"), SMALL, SMALL, st.lists(SMALL, max_size=3).map(tuple)),
    st.tuples(st.just("seal_stream"), SMALL, st.integers(1, 9)),
    st.tuples(st.just("unseal_stream"), SMALL, SMALL),
    st.tuples(st.just("set_manager"), st.sampled_from(["", "m:1"]), st.booleans()),
)


def _apply(members: Members, operation: tuple[Any, ...]) -> tuple[Members, object]:
    found = getattr(rules, operation[0])(members, *operation[1:])
    return found if isinstance(found, tuple) else (found, None)


@settings(max_examples=200)
@given(st.lists(OPERATIONS, max_size=40))
def test_the_view_stays_whole_and_every_change_may_be_requested_again(
    operations: list[tuple[Any, ...]],
) -> None:
    members = empty()
    for operation in operations:
        before = members
        try:
            members, answer = _apply(members, operation)
        except VarlogError:
            continue
        view = members.view
        assert view.revision == before.view.revision + (view is not before.view)
        nodes = [found.node for found in view.nodes]
        topics = [found.topic for found in view.topics]
        assert nodes == sorted(dict.fromkeys(nodes)) and topics == sorted(dict.fromkeys(topics))
        assert len(dict.fromkeys(found.name for found in view.topics)) == len(topics)
        for stream in view.streams:
            assert stream.topic in topics and all(node in nodes for node in stream.replicas)
            assert stream.log_stream < members.next_log_stream and stream.log_stream not in members.unused
            old = before.view.stream(stream.log_stream)
            assert old is None or old.epoch <= stream.epoch <= old.epoch + 1, "law 7: epochs only grow"
        if operation[0] != "new_log_stream_id":
            assert _apply(members, operation) == (members, answer), "asked again: the same answer"


# --- Replicas that change ---------------------------------------------------------------------------------------------------


def _sealed(committed_end: int) -> Members:
    """Log stream 1 on nodes 1 and 2, sealed there in epoch 2; node 3 is registered too."""
    members, topic = rules.register_topic(with_nodes(ONE, TWO, THREE), "orders", Ordering.COMMITTED)
    members, log_stream = rules.new_log_stream_id(members)
    members, _ = rules.register_log_stream(members, topic.topic, log_stream, (ONE, TWO))
    members, _ = rules.unseal_stream(members, log_stream, Epoch(1))
    members, _ = rules.seal_stream(members, log_stream, LLSN(committed_end))
    return members


def test_a_sealed_stream_gets_other_replicas_and_a_new_epoch_and_keeps_its_end() -> None:
    """R-REG-6, law 7."""
    members, moved = rules.set_replicas(_sealed(9), LS, Epoch(2), (TWO, THREE))
    assert (moved.replicas, moved.epoch, moved.sealed_end) == ((2, 3), 3, 9)
    assert moved.state is StreamState.SEALED
    assert members.view.stream(LS) == moved


def test_changing_replicas_again_is_done_already_and_late_it_is_refused() -> None:
    members, moved = rules.set_replicas(_sealed(9), LS, Epoch(2), (TWO, THREE))
    assert rules.set_replicas(members, LS, Epoch(2), (TWO, THREE)) == (members, moved)
    with pytest.raises(StaleEpoch):
        rules.set_replicas(members, LS, Epoch(2), (ONE, THREE))
    with pytest.raises(PreconditionFailed, match="only while it is sealed"):
        rules.set_replicas(members, LS, Epoch(9), (ONE, THREE))
    running, _ = rules.unseal_stream(members, LS, Epoch(3))
    with pytest.raises(PreconditionFailed, match="only while it is sealed"):
        rules.set_replicas(running, LS, Epoch(3), (ONE, THREE))


def test_one_old_replica_stays_unless_the_stream_is_empty() -> None:
    with pytest.raises(PreconditionFailed, match="must stay"):
        rules.set_replicas(_sealed(2), LS, Epoch(2), (THREE,))
    _, moved = rules.set_replicas(_sealed(1), LS, Epoch(2), (THREE,))
    assert moved.replicas == (3,)


@pytest.mark.parametrize("replicas", [(), (2, 2), (2, 9)])
def test_replicas_are_on_different_registered_nodes(replicas: tuple[int, ...]) -> None:
    with pytest.raises((InvalidRequest, PreconditionFailed)):
        rules.set_replicas(_sealed(9), LS, Epoch(2), tuple(map(NodeID, replicas)))


def test_a_hold_by_hand_outlives_seals_and_moves_until_it_is_undone_by_hand() -> None:
    members, marked = rules.set_sealed_by_admin(_sealed(9), LS, True)
    assert marked.sealed_by_admin
    assert rules.set_sealed_by_admin(members, LS, True) == (members, marked)
    members, moved = rules.set_replicas(members, LS, Epoch(2), (TWO, THREE))
    members, running = rules.unseal_stream(members, LS, Epoch(3))
    members, sealed = rules.seal_stream(members, LS, LLSN(12))
    assert moved.sealed_by_admin and running.sealed_by_admin and sealed.sealed_by_admin
    assert not rules.set_sealed_by_admin(members, LS, False)[1].sealed_by_admin
    with pytest.raises(UnknownLogStream):
        rules.set_sealed_by_admin(members, LogStreamID(7), True)


def test_concurrent_creations_of_a_topic_add_no_more_streams_than_wanted() -> None:
    """Two managers that make the same topic: the second finds that it is made."""
    members = _sealed(1)
    topic = members.view.topics[0].topic
    members, second = rules.new_log_stream_id(members)
    with pytest.raises(PreconditionFailed, match="already has its 1 log streams"):
        rules.register_log_stream(members, topic, second, (ONE,), streams_max=1)
    members, _ = rules.register_log_stream(members, topic, second, (ONE,), streams_max=2)
    assert len(members.view.streams) == 2
