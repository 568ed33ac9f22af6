"""ClusterWatcher: fresh looks at the cluster for those who asked something of it, and the wait until it has followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from varlog.manager.peers import Peers
from varlog.manager.repair_loop import RepairLoop
from varlog.manager.repair_steps import HELD, RUNS
from varlog.manager.snapshot import Snapshot
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID

# How long a call of an operator waits for the cluster to follow.
SETTLE_TIMEOUT_S = 10.0
# One look a moment, not as fast as the repository can answer.
LOOK_S = 0.01


class ClusterWatcher:
    """Every look is a round of the repair loop that begins after the question."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair

    async def look(self) -> Snapshot:
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                return await self._repair.wait_round()
        except TimeoutError:
            raise Unavailable(
                f"the metadata repository at {self._peers.repository} does not answer the manager: is it running?"
            ) from None

    async def wait_running(self, what: str, streams: Sequence[LogStreamID]) -> Snapshot:
        """`what` is true already; the error says so, and what the streams still wait for."""
        return await self.wait(
            what, streams, lambda snapshot: all(snapshot.runs(stream) for stream in streams)
        )

    async def wait(
        self, what: str, streams: Sequence[LogStreamID], there: Callable[[Snapshot], bool]
    ) -> Snapshot:
        snapshot: Snapshot | None = None
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while True:
                    snapshot = await self._repair.wait_round()
                    if there(snapshot):
                        return snapshot
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unavailable(f"{what}, but {self._hindrance(snapshot, streams)}") from None

    def _hindrance(self, snapshot: Snapshot | None, streams: Sequence[LogStreamID]) -> str:
        """The first thing in the way of these streams, in a sentence."""
        if snapshot is None:
            return "the metadata repository does not answer"
        for stream in streams:
            step, said = snapshot.steps.get(stream), self._repair.reported_step(stream)
            if step not in (RUNS, HELD) and said:
                return f"log stream {stream} is not there yet: {said}"
        return "the cluster did not follow in time: see `varlog status`"
