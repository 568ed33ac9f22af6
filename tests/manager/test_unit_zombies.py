"""Zombies among log units: nothing that a projection, an operator or another manager still needs is ever among them."""

from __future__ import annotations

from varlog.manager.zombie_rules import Zombie, unregistered
from varlog.model.cluster import ClusterView, LogStream, Ordering, StreamState, Topic, changed
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, Stripe
from varlog.model.status import NodeStatus, SyncState, SyncStatus, UnitStatus

CLUSTER = ClusterID(1)
LS, GONE = LogStreamID(1), LogStreamID(2)
A, B, C = NodeID(1), NodeID(2), NodeID(3)
TOPIC = Topic(TopicID(1), "t", Ordering.SEQUENCED)
VIEW = ClusterView(
    CLUSTER,
    1,
    topics=(TOPIC,),
    streams=(LogStream(LS, TOPIC.topic, (A, B), StreamState.RUNNING, Epoch(3)),),
    projections=(
        Projection(
            TOPIC.topic, Epoch(3), GLSN(9), (Range(GLSN(1), (Stripe(LS),)),), (Chain(LS, (A,), (B,)),)
        ),
    ),
)


def _unit(log_stream: LogStreamID = LS, epoch: int = 3, newest: int = 8) -> UnitStatus:
    end = LLSN(newest + 1)
    return UnitStatus(log_stream, TOPIC.topic, Epoch(epoch), LLSN(newest), end, LLSN(1), "/v")


def _nodes(**units: UnitStatus) -> dict[NodeID, NodeStatus]:
    numbers = {"a": A, "b": B, "c": C}
    return {
        numbers[name]: NodeStatus(CLUSTER, numbers[name], name, (), (), units=(unit,))
        for name, unit in units.items()
    }


def _zombies(
    view: ClusterView = VIEW, *, wanted: tuple[tuple[LogStreamID, NodeID], ...] = (), **units: UnitStatus
) -> list[NodeID]:
    return [found.node for found in unregistered(view, _nodes(**units), lambda _: True, wanted).zombies]


def test_a_unit_of_a_stream_that_has_moved_on_is_one_in_the_epoch_in_which_it_was_seen() -> None:
    """R-REG-4: found by comparison of the units with the projection."""
    found = unregistered(VIEW, _nodes(a=_unit(), b=_unit(), c=_unit(epoch=2)), lambda _: True)
    assert found.zombies == (Zombie(C, LS, Epoch(2)),)


def test_members_are_none_also_those_that_are_away() -> None:
    """R-REG-4: nothing that is registered is removed."""
    assert _zombies(a=_unit(), b=_unit(epoch=1)) == []


def test_one_that_is_wanted_joining_or_being_filled_is_none() -> None:
    filling = changed(_unit(), sync=SyncStatus(SyncState.IN_PROGRESS, A, LLSN(1), LLSN(1)))
    assert _zombies(a=_unit(), c=_unit(), wanted=((LS, C),)) == []
    assert _zombies(a=_unit(), c=_unit(epoch=4)) == []
    assert _zombies(a=_unit(), c=filling) == []


def test_leftover_data_is_kept_until_the_chain_is_complete_and_healthy() -> None:
    assert _zombies(c=_unit()) == []
    assert _zombies(a=changed(_unit(), damage=((LLSN(1), LLSN(2)),)), c=_unit()) == []
    assert _zombies(changed(VIEW, projections=()), a=_unit(), c=_unit()) == []


def test_a_unit_that_this_repository_never_had_is_kept_unless_it_never_held_anything() -> None:
    def never(log_stream: LogStreamID) -> bool:
        return False

    foreign = unregistered(VIEW, _nodes(c=_unit(GONE)), never)
    assert (foreign.zombies, [found.node for found in foreign.foreign]) == ((), [C])
    blank = unregistered(VIEW, _nodes(c=_unit(GONE, epoch=0, newest=0)), never)
    assert [found.node for found in blank.zombies] == [C]
    unreadable = changed(_unit(GONE, epoch=0, newest=0), trouble="it cannot be opened")
    assert unregistered(VIEW, _nodes(c=unreadable), never).zombies == ()
