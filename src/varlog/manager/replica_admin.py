"""ReplicaAdmin: what operators ask of single replicas: move one to another node, have one filled now (R-REG-6, R-SYNC-1)."""

from __future__ import annotations

from varlog.manager.caller import Caller, on_request
from varlog.manager.cluster_watcher import ClusterWatcher
from varlog.manager.peers import Peers
from varlog.manager.repair_inputs import ALONE, Move, StreamCondition
from varlog.manager.repair_loop import RepairLoop
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import LogStream, StreamState, SyncState, SyncStatus
from varlog.model.errors import InvalidRequest, PreconditionFailed
from varlog.model.ids import NodeID
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.rpc import messages
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message, ReplicaAddress


class ReplicaAdmin:
    """Takes orders; the repair loop carries out what needs more than one step."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)

    def register(self, dispatcher: Dispatcher) -> None:
        on_request(dispatcher, messages.AdminReplaceReplica, self._replace)
        on_request(dispatcher, messages.AdminSyncReplica, self._sync)

    async def _replace(self, request: messages.AdminReplaceReplica, caller: Caller) -> Message:
        """Answered when the old replica has left; the new one may still be being filled. Again is harmless."""
        snapshot = await self._watcher.look()
        log_stream = request.log_stream
        stream = snapshot.stream(log_stream)
        if request.old not in stream.replicas and request.new in stream.replicas:
            return messages.StreamReply(stream)
        new = request.new or _spare(snapshot, stream)
        # One that is a replica already has joined the only one, to take over from it.
        move = Move(request.old, new, len(stream.replicas) - (new in stream.replicas))
        _check(snapshot, stream, move)
        if snapshot.is_sequenced(stream) and new in stream.replicas:
            raise InvalidRequest(f"log stream {log_stream} has a replica on node {new} already")
        caller.check()
        if self._repair.moves.setdefault(log_stream, move) != move:
            raise PreconditionFailed(
                f"another replica of log stream {log_stream} is being moved: wait for that to end"
            )
        try:
            snapshot = await self._watcher.wait(
                f"the replica on node {move.old} is to move to node {move.new}",
                [log_stream],
                lambda snapshot: move.old not in snapshot.stream(log_stream).replicas,
            )
        finally:
            # A sequenced stream fills the new one before the old one leaves: that goes on, however long it takes.
            if not snapshot.is_sequenced(stream):
                self._repair.moves.pop(log_stream, None)
            self._repair.wake()
        return messages.StreamReply(snapshot.stream(log_stream))

    async def _sync(self, request: messages.AdminSyncReplica, caller: Caller) -> Message:
        """Ask once; asked again it tells how far it is."""
        snapshot = await self._watcher.look()
        caller.check()
        stream, node = snapshot.stream(request.log_stream), request.node
        if node not in stream.replicas:
            raise InvalidRequest(
                f"log stream {stream.log_stream} has no replica on node {node}: see `varlog status`"
            )
        if snapshot.is_sequenced(stream):
            return await self._sync_unit(snapshot, stream, node)
        case = StreamCondition.of(stream, snapshot.statuses_of(stream), ALONE)
        if case.is_whole(node):
            end = case.known[node].committed_end
            return messages.SyncReply(SyncStatus(SyncState.COMPLETE, node, end, end))
        if stream.state is not StreamState.SEALED or node not in case.known or not case.is_behind(node):
            said = self._repair.reported_step(stream.log_stream) or "it is being sealed"
            raise PreconditionFailed(f"the replica on node {node} cannot be synced now: {said}")
        sources = case.sources(node)
        if not sources:
            raise PreconditionFailed(
                f"no other replica of log stream {stream.log_stream} is complete: there is nothing to sync from"
            )
        source, address = sources[0], _address(snapshot, sources[0])
        ask = messages.SyncReplica(stream.log_stream, stream.epoch, ReplicaAddress(source, address))
        return await self._peers.ask(_address(snapshot, node), ask, messages.SyncReply)

    async def _sync_unit(self, snapshot: Snapshot, stream: LogStream, node: NodeID) -> Message:
        """Only who is away can be behind its chain; the repair loop has it filled, and joined, by itself."""
        projection = snapshot.view.projection(stream.topic)
        if projection is None or node not in snapshot.nodes:
            raise PreconditionFailed(
                f"the unit on node {node} cannot be filled now: {self._repair.reported_step(stream.log_stream)}"
            )
        chain = projection.chain(stream.log_stream)
        if node in chain.nodes:
            newest = snapshot.unit(stream.log_stream, node)
            end = LLSN(newest.newest + 1) if newest is not None else FIRST_LLSN
            return messages.SyncReply(SyncStatus(SyncState.COMPLETE, node, end, end))
        if chain.tail not in snapshot.nodes:
            raise PreconditionFailed(
                f"node {chain.tail}, which has everything, does not answer: nothing to sync from"
            )
        source = ReplicaAddress(chain.tail, _address(snapshot, chain.tail))
        ask = messages.SyncUnit(stream.log_stream, source, max_epoch=projection.epoch)
        return await self._peers.ask(_address(snapshot, node), ask, messages.SyncReply)


def _spare(snapshot: Snapshot, stream: LogStream) -> NodeID:
    found = next((node for node in snapshot.spares() if node not in stream.replicas), None)
    if found is None:
        raise PreconditionFailed("no other storage node lives and has room: add one with `varlog node add`")
    return found


def _check(snapshot: Snapshot, stream: LogStream, move: Move) -> None:
    if move.old not in stream.replicas:
        raise InvalidRequest(
            f"log stream {stream.log_stream} has no replica on node {move.old}: see `varlog status`"
        )
    if move.new not in snapshot.nodes:
        raise PreconditionFailed(
            f"storage node {move.new} is not registered, or does not answer: see `varlog node list`"
        )
    taken = move.new in stream.replicas and len(stream.replicas) > 2
    if taken or move.new == move.old:
        raise InvalidRequest(f"log stream {stream.log_stream} has a replica on node {move.new} already")
    if move.new not in stream.replicas and move.new not in snapshot.spares():
        raise PreconditionFailed(
            f"storage node {move.new} has no room for another replica: see `varlog status`"
        )


def _address(snapshot: Snapshot, node: NodeID) -> str:
    return snapshot.nodes[node].address
