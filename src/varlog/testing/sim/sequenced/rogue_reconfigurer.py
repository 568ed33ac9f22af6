"""RogueReconfigurer: a client that reconfigures sequenced topics for no reason.

It reports healthy nodes as failed, and sometimes stops half-way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from varlog.client.routing import ATTEMPT_S, Routing
from varlog.model.cluster import ClusterView
from varlog.model.epoch import Epoch
from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.reconfigurer import Reconfigurer
from varlog.reconfiguration.rules import Wish, next_projection
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.plan import SimPlan

# A client that is delayed for longer leaves what it has begun to others.
PATIENCE_S = 4.0


class RogueReconfigurer:
    """What any client may do, and so must do no harm: safety cannot rest on who accuses whom, or on who finishes what."""

    def __init__(
        self, plan: SimPlan, rng: random.Random, repository: str, trace: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._rng = rng
        self._repository = repository
        self._trace = trace

    async def work(
        self,
        name: str,
        environment: Environment,
        transport: Transport,
        topic: str,
        stopping: Callable[[], bool],
    ) -> None:
        """All reconfigurations of one user, at moments of the plan's time."""
        for _ in range(self._plan.meddling):
            await asyncio.sleep(self._rng.uniform(0, 2 * self._plan.duration_s / self._plan.meddling))
            if stopping():
                return
            routing = Routing(ConnectionPool(transport), environment, self._repository, topic_name=topic)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._trace(f"{name} meddles: {await self._meddle(routing)}")
            except (VarlogError, TimeoutError) as error:
                self._trace(f"{name} meddles in vain: {error!r}")
            finally:
                await routing.close()

    async def _meddle(self, routing: Routing) -> str:
        view = await routing.refresh(ATTEMPT_S)
        now = view.projection(routing.topic.topic)
        if now is None:
            return "there is nothing yet"
        reconfigurer = Reconfigurer(routing.ask_once, routing.ask_repository)
        if self._rng.random() < 0.25:
            return await self._seal_some(reconfigurer, view, now)
        await asyncio.sleep(self._rng.choice((0, 0, 0.05, 0.5)))  # with an old view at times
        others = [found for found in view.sequencers if found != now.sequencer]
        if others and self._rng.random() < 0.4:
            return await self._depose(reconfigurer, view, now, self._rng.choice(others))
        wish = Wish(accused=self._accused(now), join=self._join(now))
        made = await reconfigurer.run(view, now.topic, wish, seal_s=self._rng.choice((0.02, 0.1, 0.5)))
        return f"epoch {made.epoch} with {[chain.nodes for chain in made.chains]}, accused: {sorted(wish.accused)}"

    async def _depose(
        self, reconfigurer: Reconfigurer, view: ClusterView, now: Projection, other: SequencerID
    ) -> str:
        """Another sequencer, in the middle of everybody's appends."""
        members = {chain.log_stream: chain.nodes for chain in now.chains}
        sealed = await reconfigurer.seal(view, members, Epoch(now.epoch + 1), self._rng.choice((0.02, 0.5)))
        made = await reconfigurer.propose(next_projection(now, sealed, Wish(), other), sealed)
        return f"epoch {made.epoch} with the sequencer at {other.address}"

    async def _seal_some(self, reconfigurer: Reconfigurer, view: ClusterView, now: Projection) -> str:
        """Begun, and never finished."""
        chain = self._rng.choice(now.chains)
        some = self._rng.sample(chain.nodes, self._rng.randint(1, len(chain.nodes)))
        await reconfigurer.seal(view, {chain.log_stream: some}, Epoch(now.epoch + 1), 0.2)
        return f"sealed {some} of log stream {chain.log_stream} with epoch {now.epoch + 1}, and went away"

    def _accused(self, now: Projection) -> frozenset[NodeID]:
        nodes = sorted({node for chain in now.chains for node in chain.nodes})
        return frozenset(self._rng.sample(nodes, self._rng.randint(0, len(nodes))))

    def _join(self, now: Projection) -> dict[LogStreamID, tuple[NodeID, ...]]:
        """Some members that are out of sync, whether they have been filled or not: they are, before they join."""
        if self._rng.random() < 0.5:
            return {}
        return {chain.log_stream: chain.out_of_sync for chain in now.chains if chain.out_of_sync}
