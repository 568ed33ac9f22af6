"""Reconfigurer: seals all units and proposes the next projection (R-SEQ-10).

Any process may do it, and one answer per log stream is enough.

The answer of a unit that was restored from its disk is not enough: that disk may have gone back in time. If all that
answer were restored, every member has to answer; they are compared while they are sealed, and each gets what it lacks.

Two processes that do it at once seal with the same epoch, and the repository accepts the first proposal. A process that
dies half-way leaves units that refuse the old epoch: the next process that meets them repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from varlog.model.cluster import ClusterView, Topic
from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadySyncing, PreconditionFailed, StaleEpoch, Unavailable, VarlogError
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import NO_GLSN
from varlog.model.projection import Chain, Projection, SequencerID
from varlog.model.status import SyncState
from varlog.reconfiguration.rules import (
    ChainMembers,
    SealAnswer,
    SealAnswers,
    Wish,
    first_projection,
    next_projection,
    proven,
    thin,
    to_compare,
)
from varlog.rpc.messages import (
    GetSequencer,
    GetSequencerReply,
    Message,
    ProposeProjection,
    ProposeProjectionReply,
    ReplicaAddress,
    SealUnit,
    SealUnitReply,
    SyncReply,
    SyncUnit,
)
from varlog.runtime.logging import get_logger, logfmt

M = TypeVar("M", bound=Message)

# A unit that has not answered a seal by then is left out; one that refuses the connection is not waited for.
SEAL_S: Final = 0.5
# The last entries of a node that joins are copied while the topic waits.
LAST_COPY_S: Final = 5.0
COPY_LOOK_S: Final = 0.005
# Longer than any lease that the repository may have to wait for.
PROPOSE_S: Final = 10.0

NO_SEQUENCER: Final = "no registered sequencer answers: start one with `vseq start`"

_log = get_logger("reconfiguration")


class AskUnit(Protocol):
    """One attempt of one call, including the dialling."""

    def __call__(self, address: str, request: Message, answer: type[M], timeout_s: float) -> Awaitable[M]: ...


class AskRepository(Protocol):
    def __call__(self, request: Message, answer: type[M], timeout_s: float) -> Awaitable[M]: ...


class Reconfigurer:
    """Has no connections of its own: its callers pass in how to call a process at an address, and the repository."""

    def __init__(self, ask: AskUnit, ask_repository: AskRepository) -> None:
        self._ask = ask
        self._ask_repository = ask_repository

    async def begin(
        self, view: ClusterView, topic: Topic, streams: ChainMembers, *, seal_s: float = SEAL_S
    ) -> Projection:
        """The topic's first projection, once it holds (R-SEQ-12)."""
        epoch = Epoch(1)
        sealed, sequencer = await asyncio.gather(
            self.seal(view, streams, epoch, seal_s), self.choose_sequencer(view, None, seal_s)
        )
        if sequencer is None:
            raise Unavailable(NO_SEQUENCER)
        first = first_projection(topic.topic, topic.first, topic.stripe_size, streams, sealed, sequencer)
        return await self.propose(first, sealed)

    async def run(
        self, view: ClusterView, topic: TopicID, wish: Wish, *, seal_s: float = SEAL_S
    ) -> Projection:
        """The topic's next projection, once it holds. ProjectionConflict, StaleEpoch: another process was faster.
        Unavailable: no unit of some log stream answers, or the repository does not."""
        now = view.projection(topic)
        if now is None:
            raise PreconditionFailed(f"topic {topic} has no projection yet: it is still being made")
        epoch = Epoch(now.epoch + 1)
        members = {
            chain.log_stream: (*chain.nodes, *wish.join.get(chain.log_stream, ())) for chain in now.chains
        }
        members.update(wish.streams)
        if wish.streams:
            # A unit that was just made takes this seal first: it could not be distinguished from one made in place of a
            # lost one.
            with contextlib.suppress(StaleEpoch):
                await self.seal(view, wish.streams, Epoch(1), seal_s)
        choosing = asyncio.ensure_future(self.choose_sequencer(view, now.sequencer, seal_s))
        try:
            answered = await self.seal(view, members, epoch, seal_s)
            compared = await self._compared(view, now, answered, wish, epoch)
            sealed = await self._with_last_copies(view, now, compared, wish, epoch)
            sequencer = await choosing
        finally:
            choosing.cancel()
        known = view.topic(topic)
        trimmed = known.trimmed if known is not None else NO_GLSN
        return await self.propose(next_projection(now, sealed, wish, sequencer, trimmed), sealed)

    async def seal(
        self, view: ClusterView, members: Mapping[LogStreamID, Iterable[NodeID]], epoch: Epoch, seal_s: float
    ) -> dict[LogStreamID, dict[NodeID, SealAnswer]]:
        """The answers of the units that could be sealed. StaleEpoch: one of them is in a newer epoch."""
        asked = {
            asyncio.ensure_future(self._seal_one(view, log_stream, node, epoch, seal_s)): (log_stream, node)
            for log_stream, nodes in members.items()
            for node in dict.fromkeys(nodes)
        }
        sealed: dict[LogStreamID, dict[NodeID, SealAnswer]] = {log_stream: {} for log_stream in members}
        try:
            await asyncio.wait(asked, timeout=seal_s)
            for task, (log_stream, node) in asked.items():
                if not task.done():
                    continue
                if isinstance(error := task.exception(), StaleEpoch):
                    raise error
                if error is None:
                    answer = task.result()
                    sealed[log_stream][node] = SealAnswer(
                        answer.newest, answer.trouble, answer.unverified, answer.went_back
                    )
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return sealed

    async def _seal_one(
        self, view: ClusterView, log_stream: LogStreamID, node: NodeID, epoch: Epoch, seal_s: float
    ) -> SealUnitReply:
        found = view.node(node)
        if found is None:
            raise PreconditionFailed(f"node {node} is not registered")
        return await self._ask(found.address, SealUnit(log_stream, epoch), SealUnitReply, seal_s)

    async def propose(self, projection: Projection, sealed: SealAnswers) -> Projection:
        """The projection, once the repository has accepted it."""
        answered = tuple((log_stream, tuple(nodes)) for log_stream, nodes in sealed.items())
        request = ProposeProjection(projection, answered)
        taken = (await self._ask_repository(request, ProposeProjectionReply, PROPOSE_S)).projection
        _log.info(logfmt("reconfigured", topic=taken.topic, epoch=taken.epoch, begin=taken.begin))
        for chain in thin(taken):
            _log.warning(
                logfmt(
                    "NO REDUNDANCY: this log stream has one copy left",
                    log_stream=chain.log_stream,
                    node=chain.head,
                    out_of_sync=list(chain.out_of_sync),
                )
            )
        return taken

    async def choose_sequencer(
        self, view: ClusterView, present: SequencerID | None, timeout_s: float
    ) -> SequencerID | None:
        """The present one if it answers, else one that does; if none answers, the present one."""
        known = sorted(view.sequencers, key=lambda found: found != present)
        asked = [asyncio.ensure_future(self._is_there(found, timeout_s)) for found in known]
        try:
            for found, answer in zip(known, asked, strict=True):
                if await answer:
                    return found
        finally:
            for answer in asked:
                answer.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return present

    async def _is_there(self, sequencer: SequencerID, timeout_s: float) -> bool:
        try:
            answer = await self._ask(sequencer.address, GetSequencer(), GetSequencerReply, timeout_s)
        except VarlogError:
            return False
        return answer.sequencer == sequencer and answer.leased

    async def _compared(
        self, view: ClusterView, now: Projection, sealed: SealAnswers, wish: Wish, epoch: Epoch
    ) -> SealAnswers:
        """Units that are not known to be whole get what any other unit of their chain has."""
        complete = {log_stream: dict(answers) for log_stream, answers in sealed.items()}
        # If a member is not compared, the others may get what it lacks, and only a projection without it makes that right. Until
        # that projection holds they stay unverified: if it never does, a chain with all of them would break law 8.
        jobs = [
            (chain, node, sources, len(compared) == len(chain.nodes))
            for chain in now.chains
            if (compared := to_compare(chain, complete.get(chain.log_stream, {}), wish))
            for node, sources in compared.items()
        ]
        whole = await asyncio.gather(
            *(
                self._compare(view, chain, node, sources, wish, epoch, proves=proves)
                for chain, node, sources, proves in jobs
            )
        )
        for (chain, node, _, _), is_whole in zip(jobs, whole, strict=True):
            answers = complete[chain.log_stream]
            if not is_whole:
                continue
            if unreported := [other for other in chain.nodes if other not in answers]:
                _log.warning(
                    logfmt(
                        "UNVERIFIED: a restarted unit is believed, as others of its chain have not answered for long: what they "
                        "alone held is lost",
                        log_stream=chain.log_stream,
                        node=node,
                        unreported=unreported,
                    )
                )
            answers[node] = answers[node]._replace(unverified=False)
        return complete

    async def _compare(
        self,
        view: ClusterView,
        chain: Chain,
        node: NodeID,
        sources: tuple[NodeID, ...],
        wish: Wish,
        epoch: Epoch,
        *,
        proves: bool,
    ) -> bool:
        lost = wish.lost.get(chain.log_stream, ())
        for source in sources:
            last = proves and source == sources[-1]
            copied = await self._copy(view, chain, node, source, epoch, backfill=True, proves=last)
            if not copied and source not in lost:
                return False
        return True

    async def _with_last_copies(
        self, view: ClusterView, now: Projection, sealed: SealAnswers, wish: Wish, epoch: Epoch
    ) -> SealAnswers:
        """Units that join get what was written since they were filled. One that fails does not join."""
        complete = {log_stream: dict(answers) for log_stream, answers in sealed.items()}
        joining = [
            (log_stream, node)
            for log_stream, nodes in wish.join.items()
            for node in nodes
            if node in complete[log_stream] and node not in now.chain(log_stream).nodes
        ]
        copied = await asyncio.gather(
            *(self._last_copy(view, now.chain(at), node, complete[at], epoch) for at, node in joining)
        )
        for (log_stream, node), whole in zip(joining, copied, strict=True):
            if not whole:
                del complete[log_stream][node]
        return complete

    async def _last_copy(
        self,
        view: ClusterView,
        chain: Chain,
        node: NodeID,
        answers: Mapping[NodeID, SealAnswer],
        epoch: Epoch,
    ) -> bool:
        """From the last one of the chain that has answered: what it has, all before it have as well (law 8)."""
        known = proven([found for found in chain.nodes if found in answers], answers)
        return bool(known) and await self._copy(view, chain, node, known[-1], epoch)

    async def _copy(
        self,
        view: ClusterView,
        chain: Chain,
        node: NodeID,
        source: NodeID,
        epoch: Epoch,
        *,
        backfill: bool = False,
        proves: bool = True,
    ) -> bool:
        to, found = view.node(node), view.node(source)
        if to is None or found is None:
            return False
        address = ReplicaAddress(source, found.address)
        request = SyncUnit(
            chain.log_stream, address, epoch, max_epoch=epoch, backfill=backfill, proves=proves
        )
        try:
            async with asyncio.timeout(LAST_COPY_S):
                while True:
                    try:
                        sync = (await self._ask(to.address, request, SyncReply, LAST_COPY_S)).sync
                    except AlreadySyncing:  # another reconfiguration has it compared with another one
                        await asyncio.sleep(COPY_LOOK_S)
                        continue
                    if sync.state is SyncState.COMPLETE:
                        return True
                    if sync.state is SyncState.ERROR:
                        return False
                    await asyncio.sleep(COPY_LOOK_S)
        except (VarlogError, TimeoutError):
            return False
