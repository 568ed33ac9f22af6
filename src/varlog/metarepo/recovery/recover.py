"""`vmr recover`: rebuilds a lost metadata repository from the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from varlog.metarepo import records
from varlog.metarepo import state as states
from varlog.metarepo.recovery.rebuild import NodeEvidence, Rebuilt, rebuild
from varlog.metarepo.store.base import MetadataStore, PutItem
from varlog.model.commit import CommitRow
from varlog.model.errors import (
    CorruptReplica,
    PreconditionFailed,
    StartupError,
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import ReplicaStatus
from varlog.rpc.messages import (
    GetNodeFacts,
    GetNodeFactsReply,
    GetNodeStatus,
    GetNodeStatusReply,
    ListRows,
    ListRowsReply,
    Message,
)
from varlog.rpc.transport import Transport
from varlog.storage.view_copy import ViewCopy, decode_view_copy

CALL_TIMEOUT_S: Final = 30.0

M = TypeVar("M", bound=Message)
AskOneNode = Callable[[Message], Awaitable[tuple[Message, bytearray]]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found, and which nodes did not answer (address, reason)."""

    rebuilt: Rebuilt
    nodes: tuple[NodeEvidence, ...]
    silent: tuple[tuple[str, str], ...]


async def find_recovery(
    transport: Transport,
    addresses: Sequence[str],
    *,
    leave_out: Collection[str] = (),
    lost: Collection[NodeID] = (),
) -> Recovery:
    """Query the nodes, and report what could be rebuilt from them. Changes nothing."""
    answers = await asyncio.gather(*(_asked(transport, address) for address in addresses))
    nodes = tuple(answer for answer in answers if isinstance(answer, NodeEvidence))
    silent = tuple(answer for answer in answers if not isinstance(answer, NodeEvidence))
    return Recovery(rebuild(nodes, leave_out, lost), nodes, silent)


async def write_store(rebuilt: Rebuilt, store: MetadataStore) -> None:
    """Write the rebuilt state to a store, which must be empty, and read it back. Refused if something is not proven."""
    if rebuilt.stops:
        raise PreconditionFailed("not everything is proven: nothing was written")
    opened = await store.open()
    try:
        if opened.items:
            raise StartupError(f"{store.place} is not empty: name a new store, or move this one away")
        items = records.items_of(rebuilt.members, rebuilt.base)
        await store.commit([PutItem(key, value) for key, value in items.items()])
    finally:
        await store.close()
    await check_store(store, items)


async def check_store(store: MetadataStore, written: dict[str, bytes]) -> states.RepositoryState:
    """Open the store again: it must hold exactly what was written, and a repository must be able to start with it."""
    opened = await store.open()
    await store.close()
    if opened.items != written:
        raise Unavailable(f"{store.place} does not hold what was written to it: is the disk failing?")
    cluster = records.members_of(opened.items).view.cluster
    return states.load_state(opened.items, cluster, store.place)[0]


async def _asked(transport: Transport, address: str) -> NodeEvidence | tuple[str, str]:
    try:
        connection = await transport.connect(address, timeout_s=CALL_TIMEOUT_S)
    except VarlogError as error:
        return address, str(error)
    try:
        call = partial(connection.call, timeout_s=CALL_TIMEOUT_S)
        return await evidence(call, address, with_rows=True)
    except VarlogError as error:
        return address, str(error)
    finally:
        connection.close()


async def evidence(ask: AskOneNode, address: str, *, with_rows: bool = False) -> NodeEvidence:
    """Everything that one node knows."""
    status = (await _expect(ask, GetNodeStatus(), GetNodeStatusReply))[0].status
    facts, content = await _expect(ask, GetNodeFacts(), GetNodeFactsReply)
    rows = {}
    for replica in status.replicas if with_rows else ():
        if (found := await _rows(ask, replica)) is not None:
            rows[replica.log_stream] = found
    return NodeEvidence(
        address,
        status,
        facts.term,
        facts.in_session,
        facts.marks,
        facts.epochs,
        _copy(content, address),
        rows,
        facts.proposed,
    )


async def _rows(ask: AskOneNode, replica: ReplicaStatus) -> tuple[CommitRow, ...] | None:
    """All commit rows of a replica; None: it cannot be read."""
    rows: list[CommitRow] = []
    llsn: LLSN = FIRST_LLSN
    while True:
        try:
            answer, _ = await _expect(ask, ListRows(LogStreamID(replica.log_stream), llsn), ListRowsReply)
        except UnknownLogStream:
            return None
        rows += answer.rows
        if answer.next_llsn >= answer.committed_end:
            return tuple(rows)
        if answer.next_llsn <= llsn:
            raise Unavailable(
                f"log stream {replica.log_stream}: the rows after entry {llsn} are not reported"
            )
        llsn = answer.next_llsn


def _copy(content: bytearray, address: str) -> ViewCopy | None:
    if not content:
        return None
    try:
        return decode_view_copy(bytes(content), Path(address))
    except CorruptReplica as damaged:
        raise Unavailable(f"the copy of the view is damaged: {damaged}") from damaged


async def _expect(ask: AskOneNode, request: Message, answer: type[M]) -> tuple[M, bytearray]:
    reply, payload = await ask(request)
    if not isinstance(reply, answer):
        raise Unavailable("it does not answer like a storage node of this version")
    return reply, payload
