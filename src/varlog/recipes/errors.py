"""The errors of the recipes, under VarlogError.

VarlogError
├── ReplicaStopped     a replica that applies nothing more, for good: close it; the message says what to fix
│   ├── MachineFailed  apply() or restore() raised: a bug in the machine
│   ├── BehindTrim     what the replica would apply next was trimmed, and no snapshot covers it
│   ├── NewerCommand   a command in a format that this version does not know
│   └── PositionSkipped an operator has had a position skipped that this replica has applied: open it again
├── Conflict           a transaction that was not committed: another one changed what it depends on. Run it again
│   └── SnapshotTooOld the state that it reads is not remembered any more
├── ClaimLost          an item of a queue that another claim has now: its work will be done again
├── LockBusy           a lock or an election that others had for as long as was waited
├── LockLost           a lock or a leadership that is not ours any more: stop what it was for
├── NotHeld            a release of what is not held
├── StaleToken         work in the name of a lock that was granted again since
├── HistoryGone        a watch from a revision whose later changes are not all remembered
└── OutcomeUnknown
    └── ResultLost     applied, once; but its result is not known here any more
"""

from __future__ import annotations

from varlog.model.errors import OutcomeUnknown, VarlogError
from varlog.model.lsn import GLSN, NO_GLSN


class ReplicaStopped(VarlogError):
    """A replica that has stopped for good: nothing is skipped, so nothing more is applied."""


class MachineFailed(ReplicaStopped):
    """The machine raised where it must not. Its state, with whatever it had done of that command, is not used any more."""

    def __init__(self, machine: str, at: GLSN, why: str) -> None:
        super().__init__(machine, at, why)
        self.machine = machine
        self.at = at
        self.why = why

    def message(self) -> str:
        return (
            f"machine {self.machine!r} failed at position {self.at}, and its replica has stopped there: {self.why}. "
            f"Fix the machine (apply() returns a refusal, and never raises), or have the position skipped by all replicas "
            f"(`varlog recipe skip TOPIC {self.at} --force`), then open it again"
        )


class BehindTrim(ReplicaStopped):
    """The replica needs an entry that was trimmed."""

    def __init__(self, machine: str, applied: GLSN, oldest: GLSN) -> None:
        super().__init__(machine, applied, oldest)
        self.machine = machine
        self.applied = applied
        self.oldest = oldest

    def message(self) -> str:
        return (
            f"machine {self.machine!r} is at position {self.applied}, and everything below {self.oldest} was trimmed: open it with "
            f"the store that has a snapshot of position {self.oldest - 1} or later, or start it again in another topic"
        )


class NewerCommand(ReplicaStopped):
    """Skipping it would let this replica differ from those that apply it."""

    def __init__(self, machine: str, at: GLSN, version: int | str) -> None:
        super().__init__(machine, at, version)
        self.machine = machine
        self.at = at
        self.version = version

    def message(self) -> str:
        return (
            f"the command of machine {self.machine!r} at position {self.at} has format {self.version}, which this varlog does not "
            f"know: use the version that wrote it. If no version did, have it skipped by all replicas: "
            f"`varlog recipe skip TOPIC {self.at}`, then open the machine again"
        )


class PositionSkipped(ReplicaStopped):
    """An operator has had a position skipped, and this replica had applied it, or failed at it, before."""

    def __init__(self, machine: str, at: GLSN, by: GLSN) -> None:
        super().__init__(machine, at, by)
        self.machine = machine
        self.at = at
        self.by = by

    def message(self) -> str:
        return (
            f"the entry at {self.by} has position {self.at} skipped by every replica of machine {self.machine!r}, and this one had "
            f"reached it before: open it again, and it is built without that position"
        )


class ResultLost(OutcomeUnknown):
    """It was applied, once. The replica that sent it continued from a snapshot that has it, and never saw what it returned."""

    def message(self) -> str:
        return f"this was applied once, and its result is lost: {self.why}"


class Conflict(VarlogError):
    """The transaction changed nothing. `key` was changed at `revision` by another one, after what this one reads: the state at
    `snapshot`. `keys` is the range that it had read, if it was no single key."""

    def __init__(self, key: str, revision: GLSN, snapshot: GLSN, keys: str = "") -> None:
        super().__init__(key, revision, snapshot, keys)
        self.key = key
        self.revision = revision
        self.snapshot = snapshot
        self.keys = keys

    def message(self) -> str:
        where = f" in the range {self.keys} that it read" if self.keys else ""
        return (
            f"the transaction is not committed: key {self.key!r}{where} was changed at {self.revision}, after the state at "
            f"{self.snapshot} that it is based on. Run it again"
        )


class SnapshotTooOld(Conflict):
    """Too much was written since the transaction began: whether `key` was changed meanwhile is not known, or it cannot be read."""

    def __init__(self, key: str, snapshot: GLSN, keys: str = "") -> None:
        VarlogError.__init__(self, key, snapshot, keys)
        self.key = key
        self.revision = NO_GLSN
        self.snapshot = snapshot
        self.keys = keys

    def message(self) -> str:
        what = f"the range {self.keys}" if self.keys else f"key {self.key!r}"
        return (
            f"the transaction is not committed: {what} at {self.snapshot}, when it began, is not remembered any more. Run it "
            f"again, make it shorter, or keep more history with KeyValue.retain()"
        )


class HistoryGone(VarlogError):
    """Changes after `after` are forgotten; those after `oldest` are remembered."""

    def __init__(self, after: GLSN, oldest: GLSN) -> None:
        super().__init__(after, oldest)
        self.after = after
        self.oldest = oldest

    def message(self) -> str:
        return (
            f"changes after revision {self.after} are not all remembered, only those after {self.oldest}: read the state with "
            f"range(), and watch from then on; KeyValue.retain() keeps more history"
        )


class ClaimLost(VarlogError):
    """An item of a queue that is not the caller's any more: another claim has it, or will, or it is done."""

    def __init__(self, number: int, token: GLSN, why: str) -> None:
        super().__init__(number, token, why)
        self.number = number
        self.token = token
        self.why = why

    def message(self) -> str:
        return (
            f"item {self.number} is not claimed by token {self.token} any more: {self.why}. Its next consumer does its work "
            f"again; a longer `ttl_s` gives more time"
        )


class LockBusy(VarlogError):
    """It was not granted in time. Nothing is left in the line. `who` has it, under `token`; "" if none does, or it has no name."""

    def __init__(self, what: str, waited_s: float, who: str, token: GLSN) -> None:
        super().__init__(what, waited_s, who, token)
        self.what = what
        self.waited_s = waited_s
        self.who = who
        self.token = token

    def message(self) -> str:
        by = f" {self.who!r} has it, by token {self.token}:" if self.who else ""
        return f"{self.what} was not granted within {self.waited_s:g} s:{by} wait longer, or try again later"


class LockLost(VarlogError):
    """Its heartbeats did not get into the log in time, so others may have it now."""

    def __init__(self, what: str, token: GLSN) -> None:
        super().__init__(what, token)
        self.what = what
        self.token = token

    def message(self) -> str:
        return (
            f"{self.what} is not held any more by token {self.token}: stop what needs it, and acquire it again; a longer "
            f"`ttl_s` survives longer outages of the log"
        )


class NotHeld(VarlogError):
    """There is nothing to release."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def message(self) -> str:
        return f"{self.what} is not held here: it was released, or lost, or never acquired"


class StaleToken(VarlogError):
    """The holder of this token has lost the lock since, and does not know it yet."""

    def __init__(self, what: str, token: GLSN, newest: GLSN) -> None:
        super().__init__(what, token, newest)
        self.what = what
        self.token = token
        self.newest = newest

    def message(self) -> str:
        return f"{self.what} has seen token {self.newest}, and accepts nothing with the older {self.token}: acquire the lock again"
