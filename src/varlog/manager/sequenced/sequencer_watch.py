"""SequencerWatch: which sequencers are alive and may assign positions (R-SEQ-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog
from varlog.manager.peers import Peers
from varlog.model.errors import VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.projection import SequencerID
from varlog.rpc.messages import GetSequencer, GetSequencerReply
from varlog.rpc.transport import CallTimeout, ConnectionLost
from varlog.runtime.tasks import Tasks

# How long a sequencer that answers may be without a lease: its repository may have just started.
UNLEASED_SEQUENCER_S: Final = 2.0


class SequencerWatch:
    """Polled once per round. A round waits only for those that answered the last time, as the heartbeat does. A topic whose
    sequencer is lost gets another one by the next projection."""

    def __init__(self, config: ManagerConfig, peers: Peers, events: EventLog, tasks: Tasks) -> None:
        self._config = config
        self._peers = peers
        self._events = events
        self._tasks = tasks
        self._silent: dict[SequencerID, None] = {}
        self._probed: dict[SequencerID, None] = {}
        self._unleased_since: dict[SequencerID, float] = {}

    async def poll(self, known: Sequence[SequencerID]) -> frozenset[SequencerID]:
        """The sequencers that may assign positions."""
        for gone in [found for found in self._silent if found not in known]:
            del self._silent[gone]
        asked = [found for found in known if found not in self._silent]
        for found in [found for found in self._silent if found not in self._probed]:
            self._probed[found] = None
            _ = self._tasks.spawn(f"sequencer/{found.address}", self._probe(found))
        answers = await asyncio.gather(*(self._is_usable(found) for found in asked))
        return frozenset(found for found, usable in zip(asked, answers, strict=True) if usable)

    async def _probe(self, sequencer: SequencerID) -> None:
        try:
            if await self._is_usable(sequencer) and sequencer in self._silent:
                del self._silent[sequencer]
                self._events.record(Event(EventKind.SEQUENCER_RETURNED, address=sequencer.address))
        finally:
            del self._probed[sequencer]

    async def _is_usable(self, sequencer: SequencerID) -> bool:
        try:
            answer = await self._ask(sequencer)
        except VarlogError as error:
            self._note_silent(sequencer, str(error))
            return False
        if answer.sequencer != sequencer:
            self._note_silent(sequencer, "it was restarted, and counts from the beginning")
            return False
        now = asyncio.get_running_loop().time()
        if answer.leased:
            self._unleased_since.pop(sequencer, None)
            return True
        return now - self._unleased_since.setdefault(sequencer, now) < UNLEASED_SEQUENCER_S

    async def _ask(self, sequencer: SequencerID) -> GetSequencerReply:
        timeout_s = self._config.node_timeout_s
        try:
            return await self._peers.ask(
                sequencer.address, GetSequencer(), GetSequencerReply, timeout_s=timeout_s
            )
        except ConnectionLost as lost:
            if not lost.sent or isinstance(lost, CallTimeout):
                raise
            # A broken connection proves nothing about the process.
            return await self._peers.ask(
                sequencer.address, GetSequencer(), GetSequencerReply, timeout_s=timeout_s
            )

    def _note_silent(self, sequencer: SequencerID, why: str) -> None:
        if sequencer not in self._silent:
            self._silent[sequencer] = None
            self._events.record(Event(EventKind.SEQUENCER_UNREACHABLE, address=sequencer.address, reason=why))
