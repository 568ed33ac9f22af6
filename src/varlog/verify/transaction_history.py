"""TransactionHistory: what transactions read and wrote, and version orders.

The order is given by those who know it (registers with revisions), or found in what was read (lists that are appended to).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# What names a version of a key: no two writes of a run write the same. None is the key before its first write.
Version = int | str | None


class MicroOp(NamedTuple):
    """One step of a transaction. Of a list, `version` is the element that is appended, or the last one that was read."""

    writes: bool
    key: str
    version: Version


def read_op(key: str, version: Version) -> MicroOp:
    return MicroOp(False, key, version)


def write_op(key: str, version: Version) -> MicroOp:
    return MicroOp(True, key, version)


@dataclass(slots=True)
class RecordedTransaction:
    """One attempt. `committed` None: nobody could say. `began` and `ended` count the events of the run."""

    name: str
    ops: list[MicroOp] = field(default_factory=list)
    committed: bool | None = True
    began: int = 0
    ended: int | None = None

    def __str__(self) -> str:
        steps = ", ".join(f"{'w' if op.writes else 'r'}({op.key}, {op.version})" for op in self.ops)
        return f"{self.name}[{steps}]"

    def last_writes(self) -> dict[str, Version]:
        """What it leaves behind."""
        return {op.key: op.version for op in self.ops if op.writes}

    def reads_of_others(self) -> list[MicroOp]:
        """Reads of a key before its own first write to it."""
        own: set[str] = set()
        found: list[MicroOp] = []
        for op in self.ops:
            if op.writes:
                own.add(op.key)
            elif op.key not in own:
                found.append(op)
        return found


@dataclass(slots=True)
class TransactionHistory:
    """Transactions, the order of the versions of each key, and what is wrong already before any cycle is looked for."""

    transactions: list[RecordedTransaction]
    orders: dict[str, list[Version]]
    wrong: list[tuple[str, str]] = field(default_factory=list)  # (kind of anomaly, sentence)

    @classmethod
    def of_registers(
        cls, transactions: Sequence[RecordedTransaction], revisions: Iterable[tuple[str, int, Version]]
    ) -> TransactionHistory:
        """`revisions`: (key, revision, version), as often as a client got it; a larger revision is a newer version."""
        known: dict[str, dict[int, Version]] = {}
        history = cls(list(transactions), {})
        for key, revision, version in revisions:
            first = known.setdefault(key, {}).setdefault(revision, version)
            if first != version:
                history.wrong.append(
                    ("incompatible-order", f"revision {revision} of {key} is {first}, and is {version}")
                )
        for key, versions in known.items():
            order = history.orders[key] = [versions[revision] for revision in sorted(versions)]
            for version in {one for one in order if order.count(one) > 1}:
                history.wrong.append(("incompatible-order", f"{version} of {key} has more than one revision"))
        return history


@dataclass(slots=True)
class ListRead:
    """A whole list, as a transaction read it."""

    key: str
    elements: tuple[int, ...]


@dataclass(slots=True)
class ListTransaction:
    """A transaction of appends (key, element) and reads of whole lists."""

    name: str
    ops: list[tuple[str, int] | ListRead] = field(default_factory=list)
    committed: bool | None = True
    began: int = 0
    ended: int | None = None


def history_of_lists(transactions: Sequence[ListTransaction]) -> TransactionHistory:
    """The longest list that was read of a key has all versions of it in order; every other one must be a beginning of it.

    Reads by transactions that did not commit are left out: what they saw was promised to nobody.
    """
    history = TransactionHistory([], {})
    for one in transactions:
        made = RecordedTransaction(one.name, [], one.committed, one.began, one.ended)
        for op in one.ops:
            if isinstance(op, ListRead):
                made.ops.append(read_op(op.key, op.elements[-1] if op.elements else None))
            else:
                made.ops.append(write_op(*op))
        history.transactions.append(made)
    reads = [(one, seen) for one in transactions if one.committed for seen in _outer_reads(one)]
    for one, seen in sorted(reads, key=lambda pair: len(pair[1].elements), reverse=True):
        order = history.orders.setdefault(seen.key, list(seen.elements))
        if order[: len(seen.elements)] != list(seen.elements):
            history.wrong.append(
                (
                    "incompatible-order",
                    f"{seen.key} was {list(seen.elements)} for {one.name}, and {order} for another",
                )
            )
        if len(set(seen.elements)) < len(seen.elements):
            history.wrong.append(
                ("duplicate", f"{seen.key} has an element twice for {one.name}: {list(seen.elements)}")
            )
    history.wrong += _lost(transactions, reads)
    history.wrong += _inner(transactions)
    return history


def _outer_reads(transaction: ListTransaction) -> list[ListRead]:
    """Reads of lists to which the transaction had not appended yet."""
    own: set[str] = set()
    found: list[ListRead] = []
    for op in transaction.ops:
        if isinstance(op, ListRead):
            if op.key not in own:
                found.append(op)
        else:
            own.add(op[0])
    return found


def _lost(
    transactions: Sequence[ListTransaction], reads: Sequence[tuple[ListTransaction, ListRead]]
) -> list[tuple[str, str]]:
    """Appends that were acknowledged before a read began, are not in it, and never are."""
    ever: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    for reader, seen in reads:
        ever.setdefault(seen.key, set()).update(seen.elements)
        last[seen.key] = max(last.get(seen.key, -1), reader.began)
    found: list[tuple[str, str]] = []
    for one in transactions:
        for op in one.ops if one.committed and one.ended is not None else ():
            if isinstance(op, ListRead) or op[0] not in ever or op[1] in ever[op[0]]:
                continue
            if one.ended is not None and one.ended < last[op[0]]:
                found.append(("lost-append", f"{one.name} appended {op[1]} to {op[0]}, and it is missing"))
    return found


def _inner(transactions: Sequence[ListTransaction]) -> list[tuple[str, str]]:
    """A transaction sees its own appends, behind what it saw before them, and nothing else besides."""
    found: list[tuple[str, str]] = []
    for one in transactions:
        expected: dict[str, tuple[int, ...]] = {}
        added: dict[str, tuple[int, ...]] = {}
        for op in one.ops:
            if not isinstance(op, ListRead):
                key, element = op
                added[key] = (*added.get(key, ()), element)
                if key in expected:
                    expected[key] = (*expected[key], element)
                continue
            own = added.get(op.key, ())
            right = op.elements[len(op.elements) - len(own) :] == own
            if op.key in expected and own:
                right = op.elements == expected[op.key]
            if not right:
                found.append(("internal", f"{one.name} does not see its own work in {op.key}: {op.elements}"))
            expected[op.key] = op.elements
    return found
