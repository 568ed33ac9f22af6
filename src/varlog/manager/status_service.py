"""StatusService: how the whole cluster is, as the manager sees it now: nodes, streams, what is done and waited for."""

from __future__ import annotations

from varlog.manager.outlook import Outlook
from varlog.manager.peers import Peers
from varlog.manager.repair_loop import RepairLoop
from varlog.manager.repair_steps import RUNS
from varlog.manager.snapshot import Snapshot
from varlog.model.commit import TopicMark
from varlog.model.ids import LogStreamID
from varlog.rpc import messages
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message


class StatusService:
    """Answers with a fresh look, never with an old one."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair
        self._outlook = Outlook(peers, repair)

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on_async(messages.GetClusterStatus, self._status)

    async def _status(self, request: messages.GetClusterStatus, payload: bytearray) -> Message:
        snapshot = await self._outlook.look()
        # Before the tails, so that nobody is seen to have read what is not there; as many as one answer holds.
        readers = (await self._peers.ask_repository(messages.GetReaders(), messages.ReadersAre)).readers
        tails = []
        for topic in snapshot.view.topics:
            tail = await self._peers.ask_repository(messages.GetTail(topic.topic), messages.TailIs)
            tails.append(TopicMark(topic.topic, tail.high_watermark, tail.trimmed))
        health = tuple(
            messages.NodeHealth(
                node.node,
                node.node in snapshot.nodes,
                snapshot.nodes.get(node.node),
                snapshot.away_s.get(node.node, 0.0),
            )
            for node in snapshot.view.nodes
        )
        return messages.ClusterStatusIs(
            snapshot.view,
            health,
            tuple(tails),
            self._waits(snapshot),
            tuple(self._repair.deeds),
            snapshot.suspects,
            readers,
        )

    def _waits(self, snapshot: Snapshot) -> tuple[tuple[LogStreamID, str], ...]:
        """For each stream that does not simply run: what is done for it, or waited for."""
        return tuple(
            (log_stream, self._repair.told_of(log_stream) or str(step))
            for log_stream, step in snapshot.steps.items()
            if step != RUNS
        )
