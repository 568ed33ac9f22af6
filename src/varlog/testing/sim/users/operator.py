"""Operator: uses the command line while users work.

It creates streams, seals and unseals by hand, and moves replicas.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from varlog.client.admin import Admin
from varlog.client.connect import connect_admin
from varlog.model.cluster import LogStream
from varlog.model.errors import PreconditionFailed, VarlogError
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.plan import SimPlan

# An operator that gets no reply in this time continues with something else.
PATIENCE_S = 2.0
# Until nothing is sealed any more, at the end.
RELEASE_S = 60.0
# After this many replies that nodes do not know an order, the operator restores a copy.
ADOPTIONS_MAX = 5


class Operator:
    """What an operator asks for may fail; what it has sealed it unseals in the end."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        repository: str,
        topics: Sequence[str],
        plan: SimPlan,
        rng: random.Random,
        trace: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._repository = repository
        self._topics = list(topics)
        self._plan = plan
        self._rng = rng
        self._trace = trace

    async def work(self) -> None:
        """All actions of the plan, at random times."""
        calls = [self._add_stream] * self._plan.new_streams
        for _ in range(self._plan.handwork):
            calls.append(self._rng.choice((self._seal, self._unseal, self._replace)))
        self._rng.shuffle(calls)
        for call in calls:
            await asyncio.sleep(self._rng.uniform(0, self._plan.duration_s / len(calls)))
            try:
                async with await self._connect() as admin:
                    self._trace(f"the operator {await call(admin)}")
            except VarlogError as error:
                self._trace(f"the operator failed: {call.__name__.strip('_')}: {error}")

    async def release(self) -> bool:
        """Unseal what an operator sealed; False if that cannot be done."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELEASE_S
        while loop.time() < deadline:
            try:
                async with await self._connect() as admin:
                    sealed = [stream.log_stream for stream in await admin.streams() if stream.sealed_by_admin]
                    for log_stream in sealed:
                        await admin.unseal_stream(log_stream)
                    if not sealed:
                        return True
            except VarlogError as error:
                self._trace(f"the operator cannot unseal yet: {error}")
            await asyncio.sleep(0.2)
        return False

    async def adopt(self, put_back: Callable[[], None]) -> bool:
        """Take the order of stopped topics from the nodes, until none is stopped; False if that cannot be done. What nodes do not
        know, and say so, is in the newest copy of the repository: `put_back` restores it, once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELEASE_S
        tries = 0
        while loop.time() < deadline:
            try:
                async with await self._connect() as admin:
                    stopped = [topic.name for topic in await admin.topics() if topic.stopped]
                    if not stopped:
                        return True
                    for name in stopped:
                        shown = await admin.adopt_order(name, dry_run=False)
                        self._trace(f"the operator asks for the order of {name}: {shown}")
                        tries += bool(shown.missing and not shown.silent)
            except PreconditionFailed as error:
                self._trace(f"the operator cannot adopt an order: {error}")
                tries += 1
            except VarlogError as error:
                self._trace(f"the operator cannot adopt an order yet: {error}")
            if tries == ADOPTIONS_MAX:
                tries += 1
                put_back()
            await asyncio.sleep(0.5)
        return False

    async def _connect(self) -> Admin:
        return await connect_admin(self._transport, self._environment, self._repository, timeout_s=PATIENCE_S)

    async def _add_stream(self, admin: Admin) -> str:
        made = await admin.add_stream(self._rng.choice(self._topics))
        return f"made log stream {made.log_stream} of topic {made.topic}"

    async def _seal(self, admin: Admin) -> str:
        stream = await self._some_committed(admin)
        if stream is None:
            return "found no log stream to seal"
        await admin.seal_stream(stream.log_stream)
        return f"sealed log stream {stream.log_stream}"

    async def _unseal(self, admin: Admin) -> str:
        stream = await self._some_committed(admin)
        if stream is None:
            return "found no log stream to unseal"
        await admin.unseal_stream(stream.log_stream)
        return f"unsealed log stream {stream.log_stream}"

    async def _some_committed(self, admin: Admin) -> LogStream | None:
        """Nobody seals a sequenced one by hand: each projection does."""
        view = await admin.view()
        sequenced = {topic.topic for topic in view.topics if topic.sequenced}
        streams = [stream for stream in view.streams if stream.topic not in sequenced]
        return self._rng.choice(streams) if streams else None

    async def _replace(self, admin: Admin) -> str:
        view = await admin.view()
        stream = self._rng.choice(view.streams)
        old = self._rng.choice(stream.replicas)
        spare = [node.node for node in view.nodes if node.node not in stream.replicas]
        if not spare:
            return f"found no node to move log stream {stream.log_stream} to"
        new = self._rng.choice(spare)
        await admin.replace_replica(stream.log_stream, old, new)
        return f"moved log stream {stream.log_stream} from node {old} to node {new}"
