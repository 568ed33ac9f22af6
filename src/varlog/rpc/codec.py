"""Messages to bytes and back: MessagePack arrays, by the number of the message.

Versioning: fields are added at the end of a message, with a default; so an older peer omits what it does not know, and
ignores what it does not understand. Anything else is a new message with a new number, which an older peer refuses.
"""

from __future__ import annotations

from typing import Final

import msgspec

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, Unavailable
from varlog.rpc.messages import NUMBERS, Message

# Bytes of a message, by value: its number is in the frame's header.
encode: Final = msgspec.msgpack.Encoder().encode

number_of: Final[dict[type[Message], int]] = {kind: number for number, kind in NUMBERS.items()}

_DECODERS: Final = {number: msgspec.msgpack.Decoder(kind).decode for number, kind in NUMBERS.items()}


def decode(number: int, meta: Buffer) -> Message:
    """The message. Unavailable if this version has no such message, InvalidRequest if it cannot be one."""
    decoder = _DECODERS.get(number)
    if decoder is None:
        raise Unavailable(f"message {number} is not known here: this process is older than its peer")
    try:
        return decoder(meta)
    # RecursionError: what comes in may be nested without end.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a valid {NUMBERS[number].__name__}: {error}") from error
