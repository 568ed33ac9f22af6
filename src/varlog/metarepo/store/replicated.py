"""[A8] ReplicatedStore: a metadata store that several repositories share.

One leads by lease, and every write is fenced by that lease:

        <prefix>leader                 the leader, with its lease: deleted when that ends. Its creation revision is the term
    <prefix>candidate/<address>    each repository that leads or waits, with its lease
    <prefix>commit                 the last commit: term, serial, and the pieces of its redo record if it is not applied yet
    <prefix>redo/<term>/…          the pieces of a commit that is too large for one transaction
    <prefix>item/<key>             what is stored

Every transaction requires that `leader` is the key that this term created, and that `commit` is as this term left it. So it may be
sent again through another member when no answer came, any number of times: it takes effect once, and never after its term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from varlog.metarepo.store.base import Fenced, OpenedStore, StoreChange
from varlog.metarepo.store.election import AFTER_SLASH, LeaderElection
from varlog.metarepo.store.keyspace import (
    Condition,
    Created,
    DeleteKeys,
    KeyOperation,
    Keyspace,
    LeaseGone,
    Modified,
    PutKey,
    StoredKey,
    TransactionResult,
)
from varlog.metarepo.store.layout import Layout, batches, decode_redo, encode_redo
from varlog.model.errors import Unavailable
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt

LEASE_S: Final = 3.0

_log = get_logger("metarepo")


class CommitPoint(msgspec.Struct, frozen=True, array_like=True):
    """The last commit. `redo_pieces` > 0: it is decided, and the items may not reflect it yet."""

    term: int = 0
    serial: int = 0
    redo_pieces: int = 0


_encoder = msgspec.msgpack.Encoder()
_point = msgspec.msgpack.Decoder(CommitPoint)


class ReplicatedStore:
    """One repository's access to a shared store."""

    def __init__(
        self,
        keyspace: Keyspace,
        environment: Environment,
        *,
        prefix: str,
        lease_s: float = LEASE_S,
        address: str = "",
    ) -> None:
        self._keyspace = keyspace
        self._candidacy = LeaderElection(keyspace, environment, prefix, lease_s)
        self._layout = Layout(f"{prefix}item/")
        self._prefix = prefix
        self._commit_key = f"{prefix}commit"
        self._redo_folder = f"{prefix}redo/"
        self._address = address
        self._term = 0
        self._serial = 0
        self._commit_revision = 0

    complaints: Sequence[str] = ()

    @property
    def place(self) -> str:
        return self._keyspace.place

    @property
    def shared(self) -> bool:
        return True

    @property
    def leads(self) -> bool:
        return self._term > 0 and self._candidacy.holds

    @property
    def leader(self) -> str:
        leader = self._candidacy.leader
        return leader if self.leads or leader != self._address else ""

    async def wait_lost(self) -> Fenced:
        return Fenced(f"the leadership of term {self._term} has ended: {await self._candidacy.wait_lost()}")

    async def wait_repositories(self, known: tuple[str, ...]) -> tuple[str, ...]:
        return await self._candidacy.wait_repositories(known)

    # --- open and close --------------------------------------------------------------------------------------------------

    async def open(self, address: str = "") -> OpenedStore:
        self._address = address or self._address
        try:
            while True:
                await self.close()
                try:
                    await self._candidacy.enter(self._address)
                    term = await self._candidacy.wait_elected(self._address)
                    items = await self._load(term)
                except (Fenced, LeaseGone) as error:
                    _log.info(logfmt("the lease ended before it was used: requesting a new one", why=error))
                    continue
                self._term = term
                if self.leads:
                    self._candidacy.follow_repositories()
                    return OpenedStore(term, items)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._term = 0
        try:
            await self._candidacy.leave()
        finally:
            await self._keyspace.close()

    async def _load(self, term: int) -> dict[str, bytes]:
        """Load everything as the last term left it: nothing of that term can arrive any more, because its `leader` key is gone."""
        found = await self._read_all()
        last = next((one for one in found if one.key == self._commit_key), None)
        point = _point.decode(last.value) if last is not None else CommitPoint()
        self._commit_revision = last.modified if last is not None else 0
        self._serial = point.serial
        if point.redo_pieces:
            pieces = self._redo_pieces(point.term, point.serial)
            await self._apply_redo(
                term, decode_redo(one.value for one in found if one.key.startswith(pieces))
            )
            found = await self._read_all()
        elif any(one.key.startswith(self._redo_folder) for one in found):
            await self._fenced(term, [self._no_redo()])
        item = f"{self._prefix}item/"
        return self._layout.load(one for one in found if one.key.startswith(item))

    async def _read_all(self) -> list[StoredKey]:
        begin, end = self._prefix, self._prefix[:-1] + AFTER_SLASH
        return await self._candidacy.insist(lambda: self._keyspace.range(begin, end))

    # --- commit ------------------------------------------------------------------------------------------------------------

    async def commit(self, changes: Sequence[StoreChange]) -> None:
        if not self._term:
            raise Unavailable(f"{self.place} is not open")
        operations = self._layout.operations(changes)
        parts = list(batches(operations))
        if len(parts) <= 1:
            await self._commit_point(self._term, operations)
        else:
            await self._commit_large(self._term, operations)

    async def _commit_large(self, term: int, operations: list[KeyOperation]) -> None:
        """Write a redo record, decide it in one transaction, then apply it: after a crash the next leader finishes it."""
        pieces = encode_redo(operations)
        place = self._redo_pieces(term, self._serial + 1)
        for number, piece in enumerate(pieces):
            await self._fenced(term, [PutKey(f"{place}{number:06d}", piece)])
        await self._commit_point(term, [], redo_pieces=len(pieces))
        await self._apply_redo(term, operations)

    async def _apply_redo(self, term: int, operations: list[KeyOperation]) -> None:
        for batch in batches(operations):
            await self._fenced(term, batch)
        await self._commit_point(term, [self._no_redo()])

    async def _fenced(self, term: int, operations: Sequence[KeyOperation]) -> None:
        """Execute a part of a commit. It is idempotent, and refused once a later commit was made."""
        outcome = await self._candidacy.transact(
            self._conditions(term), operations, [self._candidacy.leader_key]
        )
        if not outcome.succeeded:
            raise self._deposed(term, outcome)

    async def _commit_point(
        self, term: int, operations: Sequence[KeyOperation], *, redo_pieces: int = 0
    ) -> None:
        """Execute the one transaction that decides the commit."""
        leader, commit = self._candidacy.leader_key, self._commit_key
        self._serial += 1
        value = _encoder.encode(CommitPoint(term, self._serial, redo_pieces))
        outcome = await self._candidacy.transact(
            self._conditions(term), [PutKey(commit, value), *operations], [leader, commit]
        )
        found = outcome.found.get(commit)
        if outcome.succeeded:
            self._commit_revision = outcome.revision
        elif found is not None and found.value == value:
            self._commit_revision = found.modified  # an earlier attempt succeeded, and its answer was lost
        else:
            raise self._deposed(term, outcome)

    def _conditions(self, term: int) -> list[Condition]:
        return [
            Created(self._candidacy.leader_key, term),
            Modified(self._commit_key, self._commit_revision),
        ]

    def _redo_pieces(self, term: int, serial: int) -> str:
        """The folder of one commit's pieces: a piece that arrives late does not affect another commit."""
        return f"{self._redo_folder}{term:020d}/{serial:020d}/"

    def _no_redo(self) -> DeleteKeys:
        return DeleteKeys(self._redo_folder, self._redo_folder[:-1] + AFTER_SLASH)

    def _deposed(self, term: int, outcome: TransactionResult) -> Fenced:
        found = outcome.found.get(self._candidacy.leader_key)
        why = (
            f"{found.value.decode()} leads now, in term {found.created}"
            if found is not None
            else "its lease has ended"
        )
        self._candidacy.lose(why)
        return Fenced(f"{self.place}: term {term} has ended: {why}")
