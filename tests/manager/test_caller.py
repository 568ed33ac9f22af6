"""What an operator asked for is not begun once the operator waits no longer."""

from __future__ import annotations

import asyncio

import pytest

from tests.manager.fakes import WAIT_S, FakeCluster
from varlog.client.admin import Admin
from varlog.client.connect import connect_admin
from varlog.manager.admin import Caller
from varlog.manager.repair_loop import ClusterWatcher
from varlog.manager.snapshot import Snapshot
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc import messages
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call
from varlog.runtime.environment import system_environment
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

STREAM = LogStreamID(1)
# With nodes 1 to 3 as replicas of stream 1 of the topic "orders", and node 4 idle.
REQUESTS = (
    messages.CreateTopic("more"),
    messages.AddStream("orders"),
    messages.DeleteTopic("orders"),
    messages.RemoveNode(NodeID(4)),
    messages.AdminReplaceReplica(STREAM, NodeID(1), NodeID(4)),
    messages.AdminSyncReplica(STREAM, NodeID(1)),
)
CHANGES = {
    "RegisterTopic",
    "NewLogStreamID",
    "UnregisterTopic",
    "UnregisterNode",
    "SetReplicas",
    "SealStream",
}


class Gate:
    """Holds up every look at the cluster until it is opened, and notes what becomes of the callers that are checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.opened = asyncio.Event(), asyncio.Event()
        self.callers: list[int] = []  # the time that each names
        self.checked: list[str] = []
        look, make, check = ClusterWatcher.snapshot, Caller.__init__, Caller.check

        async def late(watcher: ClusterWatcher) -> Snapshot:
            self.waiting.set()
            await self.opened.wait()
            return await look(watcher)

        def made(caller: Caller, call: Call | None, within_ms: int) -> None:
            make(caller, call, within_ms)
            self.callers.append(within_ms)

        def noted(caller: Caller) -> None:
            try:
                check(caller)
            except PreconditionFailed as refused:
                self.checked.append(str(refused))
                raise
            self.checked.append("it begins")

        monkeypatch.setattr(ClusterWatcher, "snapshot", late)
        monkeypatch.setattr(Caller, "__init__", made)
        monkeypatch.setattr(Caller, "check", noted)


async def _made(cluster: FakeCluster) -> None:
    await cluster.ask(messages.CreateTopic("orders"))
    assert sorted(cluster.repository.view.streams[0].replicas) == [1, 2, 3]
    cluster.repository.asked.clear()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_that_waits_is_not_begun_after_its_connection_ended(
    request_: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with FakeCluster(4) as cluster:
            await _made(cluster)
            gate = Gate(monkeypatch)
            asking = asyncio.create_task(cluster.ask(request_))
            await gate.waiting.wait()
            asking.cancel()  # which closes its connection
            with pytest.raises(asyncio.CancelledError):
                await asking
            gate.opened.set()
            await cluster.wait(lambda: bool(gate.checked))
            await cluster.ask(messages.GetClusterStatus())
            assert gate.checked == ["it was not started: its caller's connection closed while it waited"]
            assert not CHANGES & set(cluster.repository.asked)

    asyncio.run(story())


def test_a_request_in_line_behind_another_one_is_not_begun_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is still there: other calls use it."""

    async def story() -> None:
        async with FakeCluster(4) as cluster:
            await _made(cluster)
            gate = Gate(monkeypatch)
            connection = await cluster.transport.connect("vmc:1", timeout_s=WAIT_S)
            first = asyncio.create_task(
                connection.call(messages.AddStream("orders", within_ms=90_000), timeout_s=WAIT_S)
            )
            await gate.waiting.wait()
            late = asyncio.create_task(
                connection.call(messages.DeleteTopic("orders", within_ms=1), timeout_s=WAIT_S)
            )
            await cluster.wait(lambda: gate.callers == [90_000, 1])
            begun = asyncio.get_running_loop().time()
            await cluster.wait(lambda: asyncio.get_running_loop().time() > begun + 0.001)
            gate.opened.set()
            await first
            with pytest.raises(PreconditionFailed, match="its caller's deadline passed"):
                await late
            assert len(cluster.repository.view.streams) == 2
            connection.close()

    asyncio.run(story())


def test_a_caller_that_names_no_time_is_waited_on_for_as_long_as_it_is_connected() -> None:
    async def story() -> None:
        patient, hasty = Caller(None, 0), Caller(None, 100)
        hasty.check()
        await asyncio.sleep(0.2)
        patient.check()
        with pytest.raises(PreconditionFailed, match="deadline passed"):
            hasty.check()

    run_in_virtual_time(story())


def test_an_admin_names_the_time_for_which_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with FakeCluster(3) as cluster:
            gate = Gate(monkeypatch)
            gate.opened.set()
            admin: Admin = await connect_admin(
                cluster.transport, system_environment(), "mr:1", timeout_s=WAIT_S
            )
            async with admin:
                await admin.create_topic("orders")
                await admin.status()
            (within_ms,) = gate.callers
            assert 0 < within_ms <= WAIT_S * 1000

    asyncio.run(story())
