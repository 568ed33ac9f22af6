"""Backup: a consistent copy of a running repository's metadata.

The state in memory is exactly what is durable, even if part of it is in the journal alone. So the copy is made from it, between two
commits, as one base record and the members. Restored in place of a lost store, a copy is an older repository: nodes know the order
better, and its topics stop until the order is adopted from them (`varlog topic adopt-order`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from varlog.metarepo import records
from varlog.metarepo.recovery.recover import check_store
from varlog.metarepo.state import RepositoryState, load_state
from varlog.metarepo.store.base import MetadataStore, PutItem
from varlog.model.errors import InvalidRequest, PreconditionFailed, StartupError, Unavailable
from varlog.model.limits import MIB
from varlog.model.lsn import FIRST_LLSN
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import GetBackup, GetBackupReply
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Call, Transport

PIECE_BYTES: Final = 4 * MIB
CALL_TIMEOUT_S: Final = 30.0

_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def items_at(state: RepositoryState, term: int) -> dict[str, bytes]:
    """The items that a store would hold for this state. Its own terms start again: those that nodes have seen are added to them."""
    base = state.order.base(lambda log_stream: FIRST_LLSN)
    return records.items_of(replace(state.members, terms_lost=term), base)


class BackupService:
    """Answers GetBackup. It holds one copy at a time, while it is fetched piece by piece."""

    def __init__(self, state: RepositoryState, term: Callable[[], int]) -> None:
        self._state = state
        self._term = term
        self._stamp = 0
        self._content = b""

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(GetBackup, self._get)

    def _get(self, call: Call | None, request: GetBackup, payload: bytearray) -> None:
        if call is None:
            raise InvalidRequest("the metadata repository accepts requests, not one-way messages")
        if request.offset == 0:
            self._stamp += 1
            self._content = msgspec.msgpack.encode(items_at(self._state, self._term()))
        elif request.stamp != self._stamp or not 0 < request.offset < len(self._content):
            raise PreconditionFailed(
                "this copy is no longer available, because another one was started: start again"
            )
        content, total = self._content, len(self._content)
        piece = content[request.offset : request.offset + PIECE_BYTES]
        if request.offset + len(piece) == total:
            self._content = b""
        call.reply(GetBackupReply(self._stamp, total, self._term()), piece)


@dataclass(frozen=True, slots=True)
class Backup:
    """The content of a copy."""

    term: int
    state: RepositoryState


async def fetch_backup(transport: Transport, repository: str) -> dict[str, bytes]:
    """Fetch the items of the repository that leads."""
    pool = ConnectionPool(transport, owner="backup")
    try:
        leader = LeaderClient(pool, repository)
        content, total, stamp = bytearray(), 1, 0
        while len(content) < total:
            reply, payload = await pool.call(
                leader.address, GetBackup(len(content), stamp), timeout_s=CALL_TIMEOUT_S
            )
            if not isinstance(reply, GetBackupReply) or not payload:
                raise Unavailable(
                    f"{leader.address} does not answer like a metadata repository of this version"
                )
            total, stamp = reply.bytes_total, reply.stamp
            content += payload
        return _decode(bytes(content))
    finally:
        await pool.close()


async def read_store(store: MetadataStore) -> dict[str, bytes]:
    """Read the items of a repository that does not run. Opening its store begins a term, as a start would."""
    opened = await store.open()
    await store.close()
    if not opened.items:
        raise StartupError(f"{store.place} holds no metadata")
    cluster = records.members_of(opened.items).view.cluster
    state, _ = load_state(opened.items, cluster, store.place)
    return items_at(state, opened.term + state.members.terms_lost)


async def write_backup(items: dict[str, bytes], store: MetadataStore) -> Backup:
    """Write the items to a store, which must be empty, and read them back."""
    opened = await store.open()
    try:
        if opened.items:
            raise StartupError(f"{store.place} is not empty: name a file that does not exist")
        await store.commit([PutItem(key, value) for key, value in items.items()])
    finally:
        await store.close()
    state = await check_store(store, items)
    return Backup(state.members.terms_lost, state)
