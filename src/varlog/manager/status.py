"""StatusService: the state of the whole cluster, as the manager sees it now."""

from __future__ import annotations

from typing import Final

from varlog.manager.peers import Peers
from varlog.manager.repair_loop import ClusterWatcher, RepairLoop
from varlog.manager.repair_steps import RUNNING, step_event
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import Topic, changed
from varlog.model.commit import TopicMark
from varlog.model.errors import VarlogError
from varlog.model.events import Event
from varlog.model.lsn import GLSN
from varlog.model.status import ClusterStatus, NodeHealth
from varlog.reconfiguration.rules import SealAnswer, slow_tail
from varlog.rpc import messages
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message
from varlog.rpc.transport import Transport

# A sequencer answers from memory.
SEQUENCER_S: Final = 0.5


class StatusService:
    """Replies with a fresh snapshot, never with an old one."""

    def __init__(self, transport: Transport, peers: Peers, repair: RepairLoop) -> None:
        self._transport = transport
        self._peers = peers
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on_async(messages.GetClusterStatus, self._status)

    async def _status(self, request: messages.GetClusterStatus, payload: bytearray) -> Message:
        snapshot = await self._watcher.snapshot()
        # Before the tails, so that no reader appears to be ahead of them; as many as fit into one reply.
        readers = (await self._peers.ask_repository(messages.GetReaders(), messages.GetReadersReply)).readers
        tails = []
        for topic in snapshot.view.topics:
            if topic.sequenced:
                tails.append(TopicMark(topic.topic, await self._tail(snapshot, topic), topic.trimmed))
                continue
            if topic.stopped:  # the repository does not answer its tail before every node has reported
                tails.append(TopicMark(topic.topic, _newest_held(snapshot, topic), topic.trimmed))
                continue
            tail = await self._peers.ask_repository(messages.GetTail(topic.topic), messages.GetTailReply)
            tails.append(TopicMark(topic.topic, tail.high_watermark, tail.trimmed))
        health = tuple(
            NodeHealth(
                node.node,
                node.node in snapshot.nodes,
                snapshot.nodes.get(node.node),
                snapshot.unreachable_s.get(node.node, 0.0),
                snapshot.unreachable_reasons.get(node.node, ""),
            )
            for node in snapshot.view.nodes
        )
        status = ClusterStatus(
            snapshot.view,
            health,
            tuple(tails),
            self._waits(snapshot),
            tuple(self._repair.events),
            snapshot.suspects,
            readers,
            snapshot.complaints,
            snapshot.repository_corrupt_frames,
            self._transport.corrupt_frames,
        )
        return messages.GetClusterStatusReply(status)

    async def _tail(self, snapshot: Snapshot, topic: Topic) -> GLSN:
        """The last position that its sequencer assigned; without one, the newest position of any unit."""
        projection = snapshot.view.projection(topic.topic)
        if projection is None:
            return GLSN(topic.first - 1)
        if projection.sequencer is not None:
            ask = messages.NextTokens(topic.topic, projection.epoch, 0)
            address = projection.sequencer.address
            try:
                reply = await self._peers.ask(address, ask, messages.NextTokensReply, timeout_s=SEQUENCER_S)
                return GLSN(reply.first - 1)
            except VarlogError:
                pass  # `waits` shows what is done about it
        newest = {
            chain.log_stream: {
                node: SealAnswer(unit.newest)
                for node in chain.nodes
                if (unit := snapshot.unit(chain.log_stream, node)) is not None
            }
            for chain in projection.chains
        }
        return slow_tail(projection, newest)

    def _waits(self, snapshot: Snapshot) -> tuple[Event, ...]:
        """For each stream that does not simply run: what is done for it, or waited for."""
        return tuple(
            changed(self._repair.activity(log_stream) or step_event(step), log_stream=log_stream)
            for log_stream, step in snapshot.steps.items()
            if step != RUNNING
        )


def _newest_held(snapshot: Snapshot, topic: Topic) -> GLSN:
    """The newest position of the topic that a replica shows, or that stopped it."""
    shown = [
        replica.high_watermark
        for status in snapshot.nodes.values()
        for replica in status.replicas
        if replica.topic == topic.topic
    ]
    return max([topic.trimmed, topic.known, *shown])
