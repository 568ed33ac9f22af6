"""etcd: one member or three; an entry is a put of a new key, a batch is a transaction. It always syncs before it answers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from aetcd import rpc

from benchmarks.peers.contract import Journal, Keep
from benchmarks.peers.programs import etcd_program
from benchmarks.peers.server import HOST, Server, listens, start_all, stop_all
from varlog.localcluster.ports import free_ports

RANGE = 5000
BATCH_MAX = 1000
# Past its default of 2 GiB a member refuses to write.
QUOTA_BYTES = 8 << 30
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class EtcdKeys:
    """`copies` members; clients talk to the leading one."""

    def __init__(self, directory: Path, *, copies: int) -> None:
        self._clients, peers = free_ports(copies), free_ports(copies)
        program = etcd_program()
        members = ",".join(f"etcd-{number + 1}=http://{HOST}:{port}" for number, port in enumerate(peers))
        self._servers = [
            Server(
                f"etcd-{number + 1}",
                program,
                [
                    *(f"--name=etcd-{number + 1}", f"--data-dir={directory / f'etcd-{number + 1}'}"),
                    *(f"--listen-client-urls=http://{HOST}:{client}", f"--advertise-client-urls=http://{HOST}:{client}"),
                    *(f"--listen-peer-urls=http://{HOST}:{peer}", f"--initial-advertise-peer-urls=http://{HOST}:{peer}"),
                    *(f"--initial-cluster={members}", "--initial-cluster-token=peers"),
                    *(f"--quota-backend-bytes={QUOTA_BYTES}", f"--max-txn-ops={BATCH_MAX}"),
                    *("--max-request-bytes=67108864", "--log-level=error"),
                ],
                directory,
            )
            for number, (client, peer) in enumerate(zip(self._clients, peers, strict=True))
        ]  # fmt: skip

    async def start(self) -> None:
        await start_all(self._servers, self._ready)

    async def stop(self) -> None:
        await stop_all(self._servers)

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    @asynccontextmanager
    async def journal(self, system: str, topic: str, *, streams: int, callers: int) -> AsyncIterator[Journal]:
        leader = await self._leader()
        async with grpc.aio.insecure_channel(f"{HOST}:{leader}", _OPTIONS) as channel:
            stub = rpc.KVStub(channel)
            prefixes = [f"{topic}-{number}/".encode() for number in range(streams)]
            try:
                yield KeysJournal(stub, prefixes)
            finally:
                revision = 0
                for prefix in prefixes:
                    gone = await stub.DeleteRange(
                        rpc.DeleteRangeRequest(key=prefix, range_end=_behind(prefix))
                    )
                    revision = gone.header.revision
                # What was deleted keeps its place until its revisions are forgotten.
                await stub.Compact(rpc.CompactionRequest(revision=revision))

    async def _leader(self) -> int:
        """The port of the member that leads."""
        for port in self._clients:
            async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
                status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest())
                if status.leader == status.header.member_id:
                    return port
        return self._clients[0]

    async def _ready(self) -> bool:
        if not all(listens(port) for port in self._clients):
            return False
        try:
            for port in self._clients:
                async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
                    status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=2.0)
                    if not status.leader:
                        return False
        except grpc.aio.AioRpcError:
            return False
        return True


class KeysJournal:
    """Over the generated stubs of etcd's API, the least that a Python client can do. One channel: more are no faster."""

    batch_ways = ("transaction",)
    read_ways = ("entries",)

    def __init__(self, stub: Any, prefixes: Sequence[bytes]) -> None:
        self._stub = stub
        self._prefixes = prefixes
        self._numbers = itertools.count()

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        done: Awaitable[object] = self._stub.Put(self._put(caller, payload))
        return done

    def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> Awaitable[object]:
        puts = [rpc.RequestOp(request_put=self._put(caller, payload)) for payload in payloads]
        done: Awaitable[object] = self._stub.Txn(rpc.TxnRequest(success=puts))
        return done

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        """Ranges in the order of the keys, which is that of their appending."""
        got, begin, end = 0, self._prefixes[0], _behind(self._prefixes[0])
        while got < count:
            asked = rpc.RangeRequest(key=begin, range_end=end, limit=min(RANGE, count - got))
            entries = (await self._stub.Range(asked)).kvs
            values = [entry.value for entry in entries]
            got += len(values)
            begin = entries[-1].key + b"\x00"
            if keep is not None:
                keep(values)
        return got

    def _put(self, caller: int, payload: bytes) -> Any:
        prefix = self._prefixes[caller % len(self._prefixes)]
        return rpc.PutRequest(key=b"%b%016x" % (prefix, next(self._numbers)), value=payload)


def _behind(prefix: bytes) -> bytes:
    """The first key that does not begin with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
