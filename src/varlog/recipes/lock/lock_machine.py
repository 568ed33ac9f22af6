"""PURE. LockMachine: the holder of a lock and its waiters, in order (R-USE-2).

A lock is a line of claims: commands in, grants out. The first claim holds the lock, the others wait, in the order in which they
entered. What can be relied on, whether commands arrive twice, late or never:

- At most one claim holds, and only a claim that left, or was expired, makes room for the next.
- The token of a grant is the position of the command that made it. One command makes at most one grant: tokens strictly grow.
- A claim is expired only by a command that names its last heartbeat: after one renewal in between it has no effect.

There is no clock in here. How long a lease is valid, and when a claim may be expired, is in lease_rules.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from varlog.model.errors import InvalidRequest
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand

VERSION: Final = 1
WHO_CHARS_MAX: Final = 1024
KIND_CHARS_MAX: Final = 40
NUMBER_MAX: Final = 2**63


@dataclass(frozen=True, slots=True)
class Enter:
    """Join the end of the line. `claim` is a new id for each attempt; `who` is for people to read."""

    claim: str
    ttl_us: int
    who: str

    def __post_init__(self) -> None:
        if self.ttl_us <= 0 or not self.claim or len(self.who) > WHO_CHARS_MAX:
            raise InvalidRequest(
                f"a claim needs an id, a time to live above 0 and a name of at most {WHO_CHARS_MAX} characters: "
                f"id {self.claim!r}, {self.ttl_us} us, {len(self.who)} characters"
            )


@dataclass(frozen=True, slots=True)
class Renew:
    """A heartbeat: of the holder, or of a waiter. `beat` counts those of this claim, so that its owner knows which one it sees
    applied."""

    claim: str
    beat: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Release the lock, or stop waiting for it."""

    claim: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Remove a claim that sent nothing for its time to live since the heartbeat at position `heartbeat`."""

    claim: str
    heartbeat: GLSN


LockCommand = Enter | Renew | Leave | Expire
# Each with the types of its fields.
_KINDS: Final[dict[str, tuple[Callable[..., LockCommand], tuple[type, ...]]]] = {
    "enter": (Enter, (str, int, str)),
    "renew": (Renew, (str, int)),
    "leave": (Leave, (str,)),
    "expire": (Expire, (str, int)),
}


@dataclass(frozen=True, slots=True)
class LockClaim:
    """One claim in the line. `heartbeat` is the position of its last heartbeat, `beat` the number of the newest one."""

    claim: str
    who: str
    ttl_us: int
    heartbeat: GLSN
    beat: int = 0


def encode_lock_command(command: LockCommand) -> bytes:
    """A command as it is in the log."""
    kind = type(command).__name__.lower()
    fields = [getattr(command, name) for name in command.__slots__]
    return json.dumps([VERSION, kind, *fields], separators=(",", ":")).encode()


def decode_lock_command(data: bytes) -> LockCommand:
    """MalformedCommand if it is none; UnknownCommand if it is one of a newer version, which cannot be skipped."""
    try:
        version, kind, *fields = _parsed(data, "command")
    except (ValueError, RecursionError):
        raise MalformedCommand("this is no command of a lock") from None
    if type(version) is not int or version < VERSION or not isinstance(kind, str):
        raise MalformedCommand("this is no command of a lock")
    if version > VERSION or kind not in _KINDS:
        raise UnknownCommand(version if version > VERSION else kind[:KIND_CHARS_MAX])
    made, shape = _KINDS[kind]
    if len(fields) > len(shape):
        raise UnknownCommand(f"{kind} with {len(fields)} fields")
    if [type(field) for field in fields] != list(shape) or not all(map(_writable, fields)):
        raise MalformedCommand(f"a command {kind!r} of a lock with other fields than it has")
    try:
        return made(*fields)
    except InvalidRequest as error:
        raise MalformedCommand(str(error)) from None


def _writable(field: str | int) -> bool:
    """Whether a snapshot can have it: numbers of positions and times, text without lone surrogates."""
    if isinstance(field, int):
        return abs(field) < NUMBER_MAX
    return field.isascii() or not any("\ud800" <= character <= "\udfff" for character in field)


class LockMachine:
    """The line of one lock. Deterministic: every replica that applied the same commands is the same."""

    def __init__(self) -> None:
        self._line: dict[str, LockClaim] = {}  # in the order of entering; the first one holds
        self.token = NO_GLSN  # where the first one became the first; the last such position if there is none

    # --- Reading --------------------------------------------------------------------------------------------------------

    @property
    def holder(self) -> LockClaim | None:
        return next(iter(self._line.values()), None)

    def find(self, claim: str) -> LockClaim | None:
        return self._line.get(claim)

    def __iter__(self) -> Iterator[LockClaim]:
        """From the holder to the newest claim."""
        return iter(self._line.values())

    def __len__(self) -> int:
        return len(self._line)

    # --- Changing -------------------------------------------------------------------------------------------------------

    def apply(self, at: GLSN, command: bytes) -> bool:
        """Whether the command did what it says."""
        return self.execute(at, decode_lock_command(command))

    def execute(self, at: GLSN, command: LockCommand) -> bool:
        match command:
            case Enter():
                return self._enter(at, command)
            case Renew():
                return self._renew(at, command)
            case Leave():
                return self._remove(at, command.claim)
            case Expire():
                known = self._line.get(command.claim)
                return (
                    known is not None
                    and known.heartbeat == command.heartbeat
                    and self._remove(at, command.claim)
                )

    def _enter(self, at: GLSN, command: Enter) -> bool:
        if command.claim in self._line:
            return False
        if not self._line:
            self.token = at
        self._line[command.claim] = LockClaim(command.claim, command.who, command.ttl_us, at)
        return True

    def _renew(self, at: GLSN, command: Renew) -> bool:
        known = self._line.get(command.claim)
        if known is None:
            return False
        # A late heartbeat counts too: others count from where they saw it. The number never falls: it stands for when it was sent.
        self._line[command.claim] = replace(known, heartbeat=at, beat=max(known.beat, command.beat))
        return True

    def _remove(self, at: GLSN, claim: str) -> bool:
        if claim not in self._line:
            return False
        held = next(iter(self._line)) == claim
        del self._line[claim]
        if held and self._line:
            self.token = at
        return True

    # --- Snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        line = [[claim.claim, claim.who, claim.ttl_us, claim.heartbeat, claim.beat] for claim in self]
        return json.dumps([VERSION, self.token, line], separators=(",", ":")).encode()

    def restore(self, snapshot: bytes) -> None:
        version, *rest = _parsed(snapshot, "snapshot")
        if version != VERSION:
            raise ValueError(
                f"a snapshot of version {version}, and this varlog reads version {VERSION}: use a newer one"
            )
        token, line = rest
        self.token = GLSN(token)
        self._line = {
            claim: LockClaim(claim, who, ttl_us, GLSN(heartbeat), beat)
            for claim, who, ttl_us, heartbeat, beat in line
        }


def _parsed(data: bytes, what: str) -> list[Any]:
    found = json.loads(data)
    if not isinstance(found, list) or not found:
        raise ValueError(f"no {what} of a lock: {data[:100]!r}")
    return found
