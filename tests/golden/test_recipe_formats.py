"""Every format of the recipes' core matches its golden file.

It is written with the same bytes, and read back forever.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.recipe_formats import CHUNK, ENVELOPE, FORMATS, HERE, SKIP, STATE, counter, queue, sessions
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import Sessions
from varlog.recipes.core.counter_machine import CounterMachine
from varlog.recipes.core.directory_snapshots import decode_file
from varlog.recipes.core.envelope import Opener
from varlog.recipes.core.snapshots import decode_snapshot
from varlog.recipes.core.topic_snapshots import decode_chunk
from varlog.recipes.queue.queue_codec import CodedQueueMachine


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_values_are_written_as_the_same_bytes(name: str) -> None:
    assert FORMATS[name]() == (HERE / name).read_bytes(), (
        f"{name}: the format changed; give it a new version and a new golden file"
    )


def test_an_envelope_of_version_1_is_read() -> None:
    data = (HERE / "recipe_envelope_v1.bin").read_bytes()
    assert Opener("orders").open(data) == ENVELOPE
    assert Opener("order").open(data) is None


def test_a_skip_of_version_1_is_read() -> None:
    data = (HERE / "recipe_skip_v1.bin").read_bytes()
    assert Opener("orders").open(data) == SKIP
    assert Opener("order").open(data) is None


@pytest.mark.parametrize(("version", "skipped"), [(1, []), (2, [2, 4])])
def test_a_snapshot_of_every_version_is_read(version: int, skipped: list[int]) -> None:
    found = decode_snapshot((HERE / f"recipe_snapshot_v{version}.bin").read_bytes(), "orders")
    assert found.skipped == skipped
    again = Sessions(2)
    again.restore(found.horizon, found.sessions)
    assert (list(again), again.horizon) == (list(sessions()), 3)
    assert (found.position, found.state) == (6, STATE)


def test_a_file_and_a_chunk_of_version_1_are_read() -> None:
    assert decode_file((HERE / "recipe_snapshot_file_v1.bin").read_bytes()) == STATE
    assert decode_chunk((HERE / "recipe_snapshot_chunk_v1.bin").read_bytes()) == CHUNK


def test_commands_and_snapshots_of_the_small_machines_are_read() -> None:
    story = json.loads((HERE / "recipe_machines_v1.json").read_bytes())
    counted = CounterMachine()
    counted.restore(bytes.fromhex(story["counter snapshot"]))
    assert counted.value == counter().value == 5 - 2**80
    for at, command in enumerate(story["counter commands"], 1):
        counted.apply(GLSN(at), bytes.fromhex(command))
    assert counted.value == 8
    replayed, restored = CodedQueueMachine(), CodedQueueMachine()
    for at, command in enumerate(story["queue commands"], 1):
        replayed.apply(GLSN(at), bytes.fromhex(command))
    restored.restore(bytes.fromhex(story["queue snapshot"]))
    assert replayed.snapshot() == restored.snapshot() == queue().snapshot()
    assert (restored.ready, [claim.number for claim in restored.claims()]) == (1, [2])
