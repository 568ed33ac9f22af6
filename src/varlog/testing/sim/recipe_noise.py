"""Recipe noise: entries in a topic of recipes that are no commands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from varlog.recipes.counter_machine import add_command
from varlog.recipes.envelope import HEAD, MAGIC, SKIP_HEAD, Envelope, seal
from varlog.recipes.lock_machine import Enter, encode
from varlog.recipes.queue_codec import Put, encode_command

# Machines of the plan's recipes whose commands have a form: of a ledger any bytes are a command.
NOISE_NAMES: Final = ("counter", "queue", "kv", "lock", "leader", "another")


def noise(rng: random.Random, names: Sequence[str]) -> bytes:
    """One entry that no recipe may apply or stop at."""
    name, pack = rng.choice(names), msgspec.msgpack.encode
    client = rng.randbytes(16)
    command = rng.choice(
        (add_command(7), encode_command(Put([b"noise"])), encode(Enter("noise", 10**9, "noise")))
    )
    whole = seal(Envelope(name, client, 0, 1, 1, command))
    return rng.choice(
        (
            rng.randbytes(rng.randint(0, 40)),
            MAGIC + rng.randbytes(rng.randint(0, 3)),
            MAGIC + b"\x02\x90",
            MAGIC + b"\x02" + pack(["another", rng.getrandbits(40)]),
            MAGIC + b"\x02" + pack([name, client])[:-1],
            # Sound commands in envelopes that no client can have made: of the future, of no number, without an end.
            HEAD + pack([name, client, 2**60, 1, 1, command]),
            HEAD + pack([name, client, 0, 0, 0, command]),
            HEAD + pack([name, client, 0, 10**12, 1, command]),
            HEAD + pack([name, b"", 0, 1, 1, command]),
            whole[: rng.randint(len(HEAD), len(whole) - 1)],
            whole + b"\x00",
            # And envelopes of a client that hold no command.
            seal(Envelope(name, client, 0, 1, 1, rng.randbytes(3))),
            seal(Envelope(name, client, 0, 1, 1, pack([1]))),
            seal(Envelope(name, client, 0, 1, 1, b'[1,"enter",["x"],5,"x"]')),
            SKIP_HEAD + pack([name, 10**12]),
            SKIP_HEAD + pack([name])[:-1],
        )
    )
