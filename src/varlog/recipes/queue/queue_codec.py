"""CodedQueueMachine: a queue's commands and snapshots as bytes.

Both stay readable. A command with another tag, or with one field more, is of a newer version: a replica that does not know it stops
(UnknownCommand), so that it cannot differ from the others. What is no command in any version changes nothing (MalformedCommand).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from varlog.model.errors import PreconditionFailed
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand
from varlog.recipes.core.envelope import DECODE_ERRORS, refusal_of
from varlog.recipes.queue.queue_machine import Claimed, Item, QueueMachine

SNAPSHOT_VERSION: Final = 1


class PutItems(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag=1):
    """Items to the end."""

    bodies: list[bytes]


class TakeItem(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=2):
    """Claim the first that is ready."""

    who: str
    ttl_us: int


class RenewClaim(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=3):
    """A heartbeat."""

    token: GLSN
    beat: int


class CompleteItem(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=4):
    """The item is done."""

    token: GLSN


class ReturnItem(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=5):
    """The item is ready again."""

    token: GLSN


class ExpireClaim(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=6):
    """A claim sent nothing for its time to live since the heartbeat at position `heartbeat`."""

    token: GLSN
    heartbeat: GLSN


QueueCommand = PutItems | TakeItem | RenewClaim | CompleteItem | ReturnItem | ExpireClaim
# The tag of each, and how many fields it has.
TAGS: Final = {1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 2}


class QueueSnapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`items`: number, body, deliveries. `claims`: number, token, who, ttl_us, heartbeat, beat, in the order of the tokens."""

    version: int
    next: int
    items: list[tuple[int, bytes, int]]
    claims: list[tuple[int, GLSN, str, int, GLSN, int]]


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(QueueCommand)
_snapshots = msgspec.msgpack.Decoder(QueueSnapshot)

encode_queue_command: Callable[[QueueCommand], bytes] = _encoder.encode


class CodedQueueMachine(QueueMachine):
    """A QueueMachine as a StateMachine: commands and snapshots as bytes."""

    def apply(self, at: GLSN, command: bytes) -> Any:
        """Numbers of a put; Taken or None of a take; of all others, whether they did what they say."""
        try:
            decoded = _commands.decode(command)
        except DECODE_ERRORS:
            raise refusal_of(command, TAGS) from None
        match decoded:
            case PutItems(bodies):
                return self.put(bodies)
            case TakeItem(who, ttl_us):
                if ttl_us <= 0:
                    raise MalformedCommand("a claim needs a time to live above 0")
                return self.take(at, who, ttl_us)
            case RenewClaim(token, beat):
                return self.renew(at, token, beat)
            case CompleteItem(token):
                return self.done(token)
            case ReturnItem(token):
                return self.release(token)
            case ExpireClaim(token, heartbeat):
                return self.expire(token, heartbeat)

    def snapshot(self) -> bytes:
        items = [(item.number, item.body, item.deliveries) for item in self.items()]
        claims = [
            (claim.number, claim.token, claim.who, claim.ttl_us, claim.heartbeat, claim.beat)
            for claim in self.claims()
        ]
        return _encoder.encode(QueueSnapshot(SNAPSHOT_VERSION, self.next, items, claims))

    def restore(self, snapshot: bytes) -> None:
        try:
            found = _snapshots.decode(snapshot)
        except msgspec.DecodeError as error:
            raise PreconditionFailed(
                f"this is no snapshot of a queue that can be read here: {error}"
            ) from error
        if found.version != SNAPSHOT_VERSION:
            raise PreconditionFailed(
                f"a snapshot of version {found.version} of a queue, and this varlog reads version {SNAPSHOT_VERSION}: use the "
                f"varlog that wrote it, or a newer one"
            )
        self.begin_from(
            found.next, (Item(*item) for item in found.items), (Claimed(*claim) for claim in found.claims)
        )
