"""D7: a connection reset before anything of a request was sent.

It left the append's outcome unknown. It is a definite failure: the append goes elsewhere, or ends as rejected.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from tests.client.fakes import FakeCluster, run
from varlog.model.cluster import StreamState
from varlog.model.errors import NotAccepted
from varlog.model.ids import ClusterID, LogStreamID
from varlog.rpc.messages import GetNodeStatus
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import ConnectionLost

ONE = LogStreamID(1)


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_a_call_over_a_connection_that_the_other_side_has_ended_was_certainly_not_sent(how: str) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            transport = TcpTransport(ClusterID(1), short_cuts=False)
            connection = await transport.connect(f"{host}:{port}", timeout_s=60.0)
            accepted, _ = listener.accept()
            if how == "reset":
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            # No turn of the loop in between: the kernel knows of the end, this process has not read it.
            assert not connection.closed
            with pytest.raises(ConnectionLost) as lost:
                await connection.call(GetNodeStatus(), timeout_s=60.0)
            assert not lost.value.sent
            connection.close()

    asyncio.run(asyncio.wait_for(body(), 120.0))


def test_an_append_that_met_the_end_of_its_connection_is_rejected_not_unknown() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"before")
            await cluster.stop("node-1")
            with pytest.raises(NotAccepted):
                await log.append_batch([b"x"], timeout_s=0.5)
        assert cluster.tail == 1

    run(body())


def test_an_append_that_met_the_end_of_its_connection_goes_to_another_stream() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        await cluster.start()
        async with await cluster.connect() as log:
            for _ in range(4):
                await log.append_batch([b"before"])
            await cluster.stop("node-1")
            stream = cluster.view.stream(ONE)
            assert stream is not None
            assert stream.state is StreamState.RUNNING
            at = [(await log.append_batch([b"x"])).first.log_stream for _ in range(4)]
            assert len(set(at)) == 1
        assert cluster.tail == 8

    run(body())
