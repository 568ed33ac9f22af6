"""The key/value store's commands and snapshots: bytes and effects.

They are the same in every version.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.golden.kv_story import FILE, STORY, play_story
from varlog.model.errors import PreconditionFailed
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand
from varlog.recipes.kv.kv_codec import CodedKvMachine, decode_kv_snapshot


def pinned() -> dict[str, Any]:
    story: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return story


def test_the_story_ends_as_in_every_version() -> None:
    assert play_story() == pinned(), (
        "replicas of the last version would differ from this one: give what changed a command of a new number"
    )


def test_the_snapshot_of_version_1_is_read_and_continued() -> None:
    machine = CodedKvMachine()
    machine.restore(bytes.fromhex(pinned()["snapshot"]))
    assert machine.snapshot().hex() == pinned()["snapshot"]
    assert {change.key: change.revision for change in machine.changes_after(machine.horizon)} == {
        "total": 24,
        "a": 26,
    }
    assert machine.put(GLSN(29), "a", b"") == 29


def test_what_a_newer_version_has_written_is_not_skipped() -> None:
    """Neither an unknown command, nor an additional field. Bytes that no version has written are skipped."""
    machine = CodedKvMachine()
    unknown: list[list[object]] = [[len(STORY), "key"], [1, "key", b"value", "more"]]
    malformed: list[object] = [[1, 7, b""], "text", [], [-1, "key"], ["1", "key"]]
    for command in unknown:
        with pytest.raises(UnknownCommand):
            machine.apply(GLSN(1), msgspec.msgpack.encode(command))
    for wrong in malformed:
        with pytest.raises(MalformedCommand):
            machine.apply(GLSN(1), msgspec.msgpack.encode(wrong))
    assert len(machine) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no snapshot"),
        (b"\x95\x02", "no snapshot"),
        (msgspec.msgpack.encode([2, [0, 0], 0, 0, []]), "version 2.* reads version 1.*a newer one"),
        (msgspec.msgpack.encode([1, [0, 0], 0, 0, [], "more"]), "no snapshot"),
    ],
)
def test_another_snapshot_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(PreconditionFailed, match=reason):
        decode_kv_snapshot(content)
