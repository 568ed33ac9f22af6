"""Event: one thing that the manager did, saw or waits for, as a typed value.

Programs compare `kind` and the fields. `sentence` is the only place that makes English of an event: tables, the
dashboard and the manager's log all show what it returns, and nothing parses it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID

NO_LOG_STREAM: Final = LogStreamID(0)
NO_NODE: Final = NodeID(0)


class EventKind(StrEnum):
    """The values are on the wire and in JSON: they never change their meaning, and none is used again."""

    # --- what the manager saw ---
    NODE_UNREACHABLE = "node_unreachable"
    NODE_RETURNED = "node_returned"
    SEQUENCER_UNREACHABLE = "sequencer_unreachable"
    SEQUENCER_RETURNED = "sequencer_returned"
    REPOSITORY_CHANGED = "repository_changed"
    FOREIGN_REPLICA_KEPT = "foreign_replica_kept"
    ONE_COPY_LEFT = "one_copy_left"
    COPIES_RESTORED = "copies_restored"
    EPOCH_STARTED = "epoch_started"

    # --- repair steps: see manager/repair_steps.py ---
    SEAL_STREAM = "seal_stream"
    SEAL_REPLICAS = "seal_replicas"
    UNSEAL_REPLICAS = "unseal_replicas"
    UNSEAL_STREAM = "unseal_stream"
    CREATE_REPLICA = "create_replica"
    REBUILD_REPLICA = "rebuild_replica"
    SYNC_REPLICA = "sync_replica"
    REPAIR_REPLICA = "repair_replica"
    CHANGE_REPLICAS = "change_replicas"
    START_TOPIC = "start_topic"
    RECONFIGURE = "reconfigure"
    REMOVE_ORPHAN = "remove_orphan"

    # --- a log stream that needs no step, or for which none is possible now ---
    RUNNING = "running"
    SEALED_BY_ADMIN = "sealed_by_admin"
    TOPIC_STOPPED = "topic_stopped"
    CONTRADICTION = "contradiction"
    STALE_VIEW = "stale_view"
    WAITING_FOR_NODE = "waiting_for_node"
    NO_SOURCE = "no_source"
    DISK_FULL = "disk_full"
    SYNCING = "syncing"
    CATCHING_UP = "catching_up"
    CREATING = "creating"
    NO_SEQUENCER = "no_sequencer"
    VERIFYING = "verifying"
    NO_LEASE = "no_lease"
    JOINING = "joining"
    UNUSABLE = "unusable"

    # --- of a newer manager than this program knows ---
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> EventKind:
        """A manager may be newer than those that ask it: its status stays readable."""
        return cls.UNKNOWN


# What an operator should know about.
WARNINGS: Final = frozenset(
    {
        EventKind.NODE_UNREACHABLE,
        EventKind.SEQUENCER_UNREACHABLE,
        EventKind.REPOSITORY_CHANGED,
        EventKind.ONE_COPY_LEFT,
    }
)


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """`time_us`: when it was recorded; 0 for what is the case now. `log_stream`, `node`: 0 if it is about none.
    `topic`: a name.

    `nodes`: further nodes: the replicas of a seal, the sources of a sync or repair, all replicas after a change.
    `count`: entries of a seal, or copies. `reason`: a cause in words, for people. `failure`: the error that ended the
    step; empty if there is none. `one_copy`: the log stream has one copy left of several.
    """

    kind: EventKind
    time_us: int = 0
    log_stream: LogStreamID = NO_LOG_STREAM
    topic: str = ""
    node: NodeID = NO_NODE
    nodes: tuple[NodeID, ...] = ()
    epoch: Epoch = NO_EPOCH
    address: str = ""
    count: int = 0
    reason: str = ""
    failure: str = ""
    one_copy: bool = False


def sentence(event: Event) -> str:
    """The event in English, without its time and its log stream, which tables and log lines show beside it."""
    text = _action(event) or event.reason or str(event.kind)
    if event.failure:
        text += f" failed: {event.failure}"
    return f"NO REDUNDANCY, one copy is left: {text}" if event.one_copy else text


def _action(event: Event) -> str:
    """Empty where the reason is the whole sentence, as it is of all that is waited for."""
    node, reason = event.node, event.reason
    match event.kind:
        case EventKind.NODE_UNREACHABLE:
            return f"storage node {node} does not answer: {reason}"
        case EventKind.NODE_RETURNED:
            return f"storage node {node} answers again"
        case EventKind.SEQUENCER_UNREACHABLE:
            return f"the sequencer at {event.address} does not answer: {reason}"
        case EventKind.SEQUENCER_RETURNED:
            return f"the sequencer at {event.address} answers again"
        case EventKind.REPOSITORY_CHANGED:
            return (
                f"the metadata repository belongs to another cluster than before ({reason}): "
                "start it on the right store, or rebuild it with `vmr recover`"
            )
        case EventKind.FOREIGN_REPLICA_KEPT:
            return (
                f"node {node} has a replica of a log stream that this metadata repository never had, and keeps it: "
                "did the repository lose its metadata, or does the replica belong to another cluster?"
            )
        case EventKind.ONE_COPY_LEFT:
            return f"NO REDUNDANCY: node {node} has the only copy; out of sync: {_list(event.nodes)}"
        case EventKind.COPIES_RESTORED:
            return f"has {event.count} copies again"
        case EventKind.EPOCH_STARTED:
            return f"topic {event.topic!r} is in epoch {event.epoch}"
        case EventKind.RUNNING:
            return "running"
        case EventKind.SEALED_BY_ADMIN:
            return "sealed by admin"
        case _:
            return _step(event)


def _step(event: Event) -> str:
    node, because = event.node, f": {event.reason}" if event.reason else ""
    match event.kind:
        case EventKind.SEAL_STREAM:
            return f"sealing the log stream{because}"
        case EventKind.SEAL_REPLICAS:
            return f"sealing the replicas on {_nodes(event.nodes)} at {event.count} entries"
        case EventKind.UNSEAL_REPLICAS:
            return f"unsealing the replicas on {_nodes(event.nodes)}"
        case EventKind.UNSEAL_STREAM:
            return f"unsealing the log stream{because}"
        case EventKind.CREATE_REPLICA:
            return f"creating a replica on node {node}, which has none"
        case EventKind.REBUILD_REPLICA:
            return f"rebuilding the replica on node {node}{because}"
        case EventKind.SYNC_REPLICA:
            return f"syncing the replica on node {node} from {_nodes(event.nodes)}"
        case EventKind.REPAIR_REPLICA:
            return f"repairing damaged entries on node {node} from {_nodes(event.nodes)}"
        case EventKind.CHANGE_REPLICAS:
            return f"moving the log stream to {_nodes(event.nodes)}{because}"
        case EventKind.START_TOPIC:
            return f"starting topic {event.topic!r}: sealing its units and proposing the first projection"
        case EventKind.RECONFIGURE:
            return f"proposing the next projection of topic {event.topic!r}{because}"
        case EventKind.REMOVE_ORPHAN:
            return f"{'removing' if event.failure else 'removed'} an unregistered replica from node {node}"
        case _:
            return ""


def _nodes(nodes: tuple[NodeID, ...]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + _list(nodes)


def _list(nodes: tuple[NodeID, ...]) -> str:
    return ", ".join(map(str, nodes))
