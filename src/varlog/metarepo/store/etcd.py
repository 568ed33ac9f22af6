"""[A8] EtcdKeyspace: the keys of a replicated store in etcd.

It uses aetcd's gRPC stubs. A hanging member costs one attempt.

Imported only where it is used, because it loads gRPC. Connections are not encrypted yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from aetcd import rpc

from varlog.metarepo.store.keyspace import (
    Condition,
    Created,
    KeyOperation,
    LeaseGone,
    NoAnswer,
    PutKey,
    StoredKey,
    TransactionResult,
)
from varlog.metarepo.store.replicated import LEASE_S, ReplicatedStore
from varlog.model.errors import StartupError, Unavailable
from varlog.model.ids import ClusterID
from varlog.runtime.environment import Environment

SCHEME: Final = "etcd://"
# A try takes at most a quarter of a lease: one member may hang, and the next is still asked in time.
TRIES_PER_LEASE: Final = 4
TRY_S_MAX: Final = 1.0

_CHANNEL: Final = (
    # Everything is loaded in one answer; gRPC's default limit of 4 MiB is less than a large cluster needs.
    ("grpc.max_receive_message_length", -1),
    # Reconnect soon to a member that returns: by default gRPC waits for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Two stores in one process do not share a connection, and so do not share its failures.
    ("grpc.use_local_subchannel_pool", 1),
)
# Certainly not executed, and no member would: an invalid request, or missing permission.
_REFUSALS: Final = (
    rpc.StatusCode.INVALID_ARGUMENT,
    rpc.StatusCode.UNAUTHENTICATED,
    rpc.StatusCode.PERMISSION_DENIED,
)

T = TypeVar("T")


def etcd_store(
    place: str, environment: Environment, cluster: ClusterID, *, lease_s: float = LEASE_S
) -> ReplicatedStore:
    """The store of one cluster in the etcd at `etcd://host:port,host:port,…`."""
    keyspace = EtcdKeyspace(endpoints_of(place), attempt_s=min(lease_s / TRIES_PER_LEASE, TRY_S_MAX))
    return ReplicatedStore(keyspace, environment, prefix=f"varlog/{cluster}/", lease_s=lease_s)


def endpoints_of(place: str) -> list[str]:
    """The host:port of every member in `etcd://…`."""
    members = [name.strip() for name in place.removeprefix(SCHEME).rstrip("/").split(",")]
    for name in members:
        host, _, port = name.rpartition(":")
        if not host or not port.isdecimal():
            raise StartupError(f"{place} does not name etcd members: write {SCHEME}host:port,host:port,…")
    return members


class _Member:
    """The connection to one member, opened on first use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._channel: Any = None

    @property
    def channel(self) -> Any:
        if self._channel is None:
            self._channel = rpc.insecure_channel(self.name, options=_CHANNEL)
        return self._channel

    @property
    def keys(self) -> Any:
        return rpc.KVStub(self.channel)

    @property
    def leases(self) -> Any:
        return rpc.LeaseStub(self.channel)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


class EtcdKeyspace:
    """A cluster of etcd. Every call goes to one member; if that does not answer, the next call goes to the next one."""

    def __init__(self, members: Sequence[str], *, attempt_s: float) -> None:
        self._members = [_Member(name) for name in members]
        self._attempt_s = attempt_s
        self._turn = 0

    @property
    def place(self) -> str:
        return SCHEME + ",".join(member.name for member in self._members)

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[KeyOperation],
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        request = rpc.TxnRequest(
            compare=[_compare(condition) for condition in conditions],
            success=[_request(operation) for operation in operations],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode())) for key in otherwise],
        )
        answer = await self._ask(lambda member: member.keys.Txn(request, timeout=self._attempt_s))
        found = [
            _found(one)
            for response in answer.responses
            if response.WhichOneof("response") == "response_range"
            for one in response.response_range.kvs
        ]
        return TransactionResult(answer.succeeded, answer.header.revision, {one.key: one for one in found})

    async def range(self, begin: str, end: str) -> list[StoredKey]:
        request = rpc.RangeRequest(key=begin.encode(), range_end=end.encode())
        answer = await self._ask(lambda member: member.keys.Range(request, timeout=self._attempt_s))
        return [_found(one) for one in answer.kvs]

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        request = rpc.LeaseGrantRequest(TTL=max(1, round(ttl_s)))
        answer = await self._ask(lambda member: member.leases.LeaseGrant(request, timeout=self._attempt_s))
        return answer.ID, float(answer.TTL)

    async def renew(self, lease: int) -> float:
        async def renew(member: _Member) -> float:
            requests = [rpc.LeaseKeepAliveRequest(ID=lease)]
            async for answer in member.leases.LeaseKeepAlive(requests, timeout=self._attempt_s):
                return float(answer.TTL)
            raise NoAnswer(f"etcd at {member.name} closed the renewal of a lease without an answer")

        return await self._ask(renew)

    async def revoke(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)
        await self._ask(lambda member: member.leases.LeaseRevoke(request, timeout=self._attempt_s))

    async def wait_change(self, key: str, after: int, timeout_s: float) -> None:
        watch = rpc.WatchCreateRequest(key=key.encode(), start_revision=after + 1)

        async def changed(member: _Member) -> None:
            call = rpc.WatchStub(member.channel).Watch()
            try:
                async with asyncio.timeout(timeout_s):
                    await call.write(rpc.WatchRequest(create_request=watch))
                    # Whatever follows "created" is a reason to check: a change, a refusal, the end of the stream.
                    while getattr(answer := await call.read(), "created", False) and not answer.canceled:
                        pass
            finally:
                call.cancel()

        try:
            await self._ask(changed)
        except TimeoutError:
            self._turn += 1  # nothing changed, or this member is cut off: ask the next one

    async def close(self) -> None:
        for member in self._members:
            await member.close()

    async def _ask(self, ask: Callable[[_Member], Awaitable[T]]) -> T:
        turn = self._turn
        member = self._members[turn % len(self._members)]
        try:
            return await ask(member)
        except rpc.AioRpcError as error:
            what = f"etcd at {member.name}: {error.details()}"
            if error.code() in _REFUSALS:
                raise Unavailable(what) from error
            if error.code() is rpc.StatusCode.NOT_FOUND:
                raise LeaseGone(what) from error
            if self._turn == turn:  # another call may have switched members already
                self._turn = turn + 1
            raise NoAnswer(what) from error
        except asyncio.CancelledError as error:
            # Closing a channel cancels its calls; this task itself was not cancelled.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise NoAnswer(f"etcd at {member.name}: the connection was closed") from error


def _compare(condition: Condition) -> rpc.Compare:
    key, revision = condition.key.encode(), condition.revision
    if isinstance(condition, Created):
        return rpc.Compare(
            key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision
        )
    return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)


def _request(operation: KeyOperation) -> rpc.RequestOp:
    if isinstance(operation, PutKey):
        put = rpc.PutRequest(key=operation.key.encode(), value=operation.value, lease=operation.lease)
        return rpc.RequestOp(request_put=put)
    delete = rpc.DeleteRangeRequest(key=operation.begin.encode(), range_end=operation.end.encode())
    return rpc.RequestOp(request_delete_range=delete)


def _found(one: rpc.KeyValue) -> StoredKey:
    return StoredKey(one.key.decode(), bytes(one.value), one.create_revision, one.mod_revision, one.lease)
