"""A story of a key/value store: commands as bytes, results, final snapshot.

`python -m tests.golden.kv_story` writes it if it does not exist, and never changes an existing one.

It pins more than bytes. Replicas of two versions of varlog may follow the same log: if one of them decided a transaction
differently, or forgot a change earlier, they would diverge from there on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from varlog.model.lsn import GLSN
from varlog.recipes.kv.kv_codec import (
    CodedKvMachine,
    Commit,
    CompareAndSet,
    Delete,
    KvCommand,
    Put,
    Retain,
    encode_kv_command,
)
from varlog.recipes.kv.transaction_rules import Clash, Isolation

FILE = Path(__file__).with_name("kv_story_v1.json")
RC, SI, SER = Isolation.READ_COMMITTED, Isolation.SNAPSHOT, Isolation.SERIALIZABLE

# Position -> command: other entries of the topic are in between.
STORY: dict[int, KvCommand] = {
    3: Put("accounts/ann", b"\x00\xff100"),
    4: Put("accounts/bob", b"50"),
    7: Delete("nobody"),
    8: CompareAndSet("accounts/bob", b"60", GLSN(4)),
    9: CompareAndSet("accounts/bob", b"70", GLSN(4)),
    10: CompareAndSet("accounts/eve", b"", GLSN(0)),
    11: Commit(
        SER, GLSN(10), ["accounts/ann"], [("accounts/", "accounts0")], {"total": b"160", "none": None}
    ),
    12: Commit(SER, GLSN(10), [], [("", None)], {"total": b"wrong"}),
    13: Commit(SI, GLSN(10), [], [], {"accounts/ann": b"90", "accounts/bob": b"70"}),
    14: Commit(SI, GLSN(10), [], [], {"accounts/bob": b"80", "new": b""}),
    15: Commit(RC, GLSN(1), [], [], {"z\u00e4hler": b"1", "accounts/eve": None}),
    16: Retain(4, 64),
    20: Delete("accounts/bob"),
    21: Put("a", b"x" * 20),
    22: Put("a", b"y" * 20),
    23: Commit(SER, GLSN(13), ["accounts/bob"], [], {"never": b""}),
    24: Commit(SI, GLSN(13), [], [], {"total": b"161"}),
    25: CompareAndSet("a", None, GLSN(22)),
    26: Put("a", b"again"),
    27: Commit(SER, GLSN(13), ["accounts/bob"], [], {"never": b""}),
    28: Commit(SER, GLSN(13), [], [("b", "c")], {"never": b""}),
}


def play_story() -> dict[str, Any]:
    """The story as the present version plays it."""
    machine = CodedKvMachine()
    steps = []
    for at, command in STORY.items():
        encoded = encode_kv_command(command)
        result = machine.apply(GLSN(at), encoded)
        if isinstance(result, Clash):
            shown: Any = [
                result.key,
                result.revision,
                result.snapshot,
                result.keys and str(result.keys),
            ]
        else:
            shown = result
        steps.append({"at": at, "command": encoded.hex(), "result": shown, "horizon": machine.horizon})
    return {"steps": steps, "snapshot": machine.snapshot().hex()}


if __name__ == "__main__" and not FILE.exists():
    FILE.write_text(json.dumps(play_story(), indent=1) + "\n", "utf-8")
