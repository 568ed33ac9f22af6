"""Attack surface: entries of others in a recipe's topic.

Six bytes in a topic stopped every recipe on it permanently: they looked like a command of a newer version, of an
unknown machine. So did any bytes in an envelope that its machine could not read, and any entry in a topic of snapshots.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.recipes.replicas import NAME, MemorySnapshots, Sequence, expect, in_virtual_time, opened
from tests.recipes.scripted_log import ScriptedLog
from varlog.embedded import EmbeddedCluster
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand
from varlog.recipes.core.counter import Counter
from varlog.recipes.core.counter_machine import CounterMachine
from varlog.recipes.core.envelope import (
    HEAD,
    MAGIC,
    SKIP_HEAD,
    Envelope,
    NewerFormat,
    Opener,
    Skip,
    encode_envelope,
    encode_skip,
)
from varlog.recipes.core.lease_rules import SentHeartbeats
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.core.topic_snapshots import MAGIC as CHUNK_MAGIC
from varlog.recipes.core.topic_snapshots import TopicSnapshots
from varlog.recipes.errors import MachineFailed, NewerCommand, PositionSkipped
from varlog.recipes.kv.key_value import KeyValue
from varlog.recipes.kv.kv_codec import CodedKvMachine
from varlog.recipes.lock.election import Election
from varlog.recipes.lock.lock import Lock
from varlog.recipes.lock.lock_machine import LockMachine
from varlog.recipes.queue.queue import Queue
from varlog.recipes.queue.queue_codec import CodedQueueMachine
from varlog.runtime.environment import system_environment
from varlog.testing.processes import PATIENCE_S, command

SIX_BYTES = MAGIC + b"\x02\x90"
NEWER = MAGIC + b"\x02" + encode_envelope(Envelope(NAME, b"c", 0, 1, 1, b"x"))[len(HEAD) :]
MACHINES: list[Callable[[], Any]] = [CounterMachine, LockMachine, CodedQueueMachine, CodedKvMachine]


def noise(name: str) -> list[bytes]:
    """Entries of others: parts of everything that a recipe writes, truncated, mangled, or of no recipe at all."""
    good = encode_envelope(Envelope(name, b"c" * 16, 0, 1, 1, b'[1,"add",1]'))
    pack = msgspec.msgpack.encode
    return [
        b"",
        b"\xc1",
        SIX_BYTES,
        MAGIC,
        MAGIC + b"\x02",
        MAGIC + b"\xff" + pack([name]),
        MAGIC + b"\x02" + pack([name])[:-1],
        MAGIC + b"\x02" + pack([name]) + b"\x00",
        MAGIC + b"\x02" + b"\x91" * 100_000,
        MAGIC + b"\x02" + b"\xdd\xff\xff\xff\xff",
        MAGIC + b"\x02" + pack(["another machine"]),
        MAGIC + b"\x02" + pack([7, name]),
        good[:-1],
        good + b"\x00",
        HEAD + pack([name, b"", 0, 1, 1, b""]),
        HEAD + pack([name, b"c", -1, 1, 1, b""]),
        HEAD + pack([name, b"c", 2**63, 1, 1, b""]),
        HEAD + pack([name, b"c", 0, 0, 0, b""]),
        HEAD + pack([name, b"c", 0, 2**60, 1, b""]),
        HEAD + pack([name, b"c", 0, 1, 2, b""]),
        HEAD + pack([name, b"d", 0, 1, 1, b"no command"]),
        HEAD + pack([name, b"e", 0, 1, 1, b"[" * 100_000]),
        HEAD + pack([name, b"f", 0, 1, 1, pack([1])]),
        HEAD + pack([name, b"g", 0, 1, 1, json.dumps([1, "enter", ["list"], 5, "x"]).encode()]),
        HEAD + pack([name, b"h", 0, 1, 1, json.dumps([1, "renew", "\ud800", 5]).encode()]),
        HEAD + pack([name, b"i", 0, 1, 1, json.dumps([1, "enter", "claim", -5, "x"]).encode()]),
        HEAD + pack([name, b"j", 0, 1, 1, pack([2, -1])]),
        SKIP_HEAD,
        SKIP_HEAD + pack([name, 10**9]),
        SKIP_HEAD + pack([name, -1]),
        SKIP_HEAD + pack([name, 1]),
        SKIP_HEAD + pack([name, "x"]),
        CHUNK_MAGIC + b"\x01",
        CHUNK_MAGIC + b"\x01" + pack([name, 1, b"s", 7, 1, 0, b""]),
    ]


# --- Every recipe ---------------------------------------------------------------------------------------------------------


def test_no_recipe_is_stopped_by_what_others_write(tmp_path: Path) -> None:
    """Each of them on one topic, with noise for each before and between its commands, and opened again behind it."""

    async def use(log: Any) -> None:
        counter, queue, kv = await Counter.open(log), await Queue.open(log), await KeyValue.open(log)
        lock, election = await Lock.open(log, name="lock"), await Election.open(log, name="election")
        replicas: list[ReplicatedStateMachine[Any]] = [
            counter.replica,
            queue.replica,
            kv.replica,
            lock.replica,
        ]
        try:
            before = await counter.value()
            for entry in [entry for replica in replicas for entry in noise(replica.name)]:
                await log.append(entry)
            assert await counter.add(5) == before + 5
            await queue.put(b"item")
            async with await queue.take(timeout_s=PATIENCE_S) as claim:
                assert claim.body == b"item"
            await kv.put("key", b"value")
            found = await kv.get("key")
            assert found is not None and found.value == b"value"
            await (await lock.acquire(timeout_s=PATIENCE_S)).release()
            for replica in replicas:
                await replica.catch_up()
                assert replica.skipped_entries > 30
                assert replica.malformed > 5
        finally:
            for recipe in (counter, queue, kv, lock, election):
                await recipe.close()

    async def story() -> None:
        cluster = EmbeddedCluster(tmp_path, system_environment(synced=False), sync=False)
        await cluster.start()
        try:
            log = await cluster.connect("recipes", streams=1)
            async with asyncio.timeout(PATIENCE_S):
                await use(log)
                await use(log)
            await log.close()
        finally:
            await cluster.stop()

    asyncio.run(story())


@given(data=st.binary(max_size=200), version=st.integers(0, 255))
@example(data=b"\x90", version=2)
@example(data=b"\x91" * 200, version=2)
def test_arbitrary_bytes_are_a_command_a_skip_or_nothing(data: bytes, version: int) -> None:
    """And only a sound array that names the machine is a command of a newer version."""
    for entry in (
        data,
        MAGIC + data,
        MAGIC + bytes([version]) + data,
        SKIP_HEAD + data,
        HEAD + b"\x96\xa4list" + data,
    ):
        try:
            found = Opener(NAME).open(entry)
        except NewerFormat as newer:
            found = None
            version_found, values = newer.version, msgspec.msgpack.decode(entry[len(HEAD) :])
        else:
            version_found, values = entry[len(MAGIC)] if len(entry) > len(MAGIC) else 0, [NAME]
        assert found is None or found.machine == NAME
        assert values[0] == NAME and (len(entry) <= len(MAGIC) or version_found == entry[len(MAGIC)])


_JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.lists(
    st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.none()
    | st.lists(st.text(max_size=3), max_size=2),
    max_size=6,
)
_COMMANDS = (
    st.binary(max_size=60)
    | _JSONS.map(lambda value: json.dumps(value).encode())
    | st.tuples(
        st.just(1),
        st.sampled_from(["add", "set", "swap", "enter", "renew", "leave", "expire"]),
        _JSONS,
        _JSONS,
    ).map(lambda value: json.dumps(value).encode())
    | _FIELDS.map(msgspec.msgpack.encode)
    | st.tuples(st.integers(0, 8), _FIELDS).map(lambda both: msgspec.msgpack.encode([both[0], *both[1]]))
)


@given(commands=st.lists(_COMMANDS, max_size=12))
@pytest.mark.parametrize("make", MACHINES, ids=lambda make: make.__name__)
def test_arbitrary_commands_change_a_machine_alike_or_not_at_all(
    make: Callable[[], Any], commands: list[bytes]
) -> None:
    """Two replicas never differ, including one from a snapshot, and nothing but these two errors is raised."""
    one, other, restored = make(), make(), make()
    for at, data in enumerate(commands, 1):
        before, results = one.snapshot(), []
        for machine in (one, other):
            try:
                results.append(("done", repr(machine.apply(GLSN(at), data))))
            except (MalformedCommand, UnknownCommand) as error:
                assert machine.snapshot() == before
                results.append((type(error).__name__, ""))
        assert results[0] == results[1]
        assert one.snapshot() == other.snapshot()
        restored.restore(one.snapshot())
        assert restored.snapshot() == one.snapshot()


@given(entries=st.lists(st.binary(max_size=40) | st.sampled_from(noise(NAME)), max_size=8))
def test_arbitrary_entries_never_stop_a_replica(entries: list[bytes]) -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as replica:
            for number, entry in enumerate(entries, 1):
                log.put(entry)
                assert await replica.execute(b"mine %d" % number) >= number
            mine = [taken for taken in replica.machine.taken if taken.startswith(b"mine")]
            assert mine == [b"mine %d" % number for number in range(1, len(entries) + 1)]
            async with opened(log, seed=2) as other:
                assert other.machine.taken == replica.machine.taken

    in_virtual_time(body)


def test_a_heartbeat_that_its_owner_never_sent_does_not_break_it() -> None:
    beats = SentHeartbeats(10_000_000, 1_000)
    beats.send(2_000)
    first = beats.until_us(0)
    assert beats.until_us(10**9) == first
    assert beats.until_us(1) == first + 1_000


# --- An operator has a position skipped --------------------------------------------------------------------------------------


def test_a_newer_command_stops_a_replica_until_an_operator_has_it_skipped() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as replica:
            await replica.execute(b"a")
            log.put(NEWER)
            error = await expect(NewerCommand, replica.execute(b"b"))
            assert "position 2 has format 2" in str(error) and "varlog recipe skip TOPIC 2" in str(error)
            log.put(SIX_BYTES)
            await expect(NewerCommand, opened(log, seed=2))
            log.put(encode_skip(Skip(NAME, 2)))
        async with opened(log, seed=3) as one, opened(log, seed=4) as two:
            assert await one.execute(b"c") == 3
            await two.catch_up()
            assert one.machine.taken == two.machine.taken == [b"a", b"b", b"c"]

    in_virtual_time(body)


def test_a_replica_that_applied_a_skipped_position_stops_and_is_rebuilt_without_it() -> None:
    """Replicas that can read the command and those that cannot are the same behind the skip."""

    async def body(log: ScriptedLog) -> None:
        contents = MemorySnapshots()
        async with opened(log, contents, seed=1) as replica:
            for number in range(1, 5):
                assert await replica.execute(b"%d" % number) == number
            await replica.checkpoint()
            log.put(encode_skip(Skip("another", 2)))
            assert await replica.execute(b"5") == 5
            log.put(encode_skip(Skip(NAME, 2)))
            error = await expect(PositionSkipped, replica.execute(b"6"))
            assert "position 2 skipped" in str(error)
        async with opened(log, contents, seed=2) as again, opened(log, seed=3) as fresh:
            assert again.machine.taken == fresh.machine.taken == [b"1", b"3", b"4", b"5", b"6"]
            await again.checkpoint()
            assert await again.execute(b"7") == 6
        async with opened(log, contents, seed=4) as last:
            assert last.machine.taken == [b"1", b"3", b"4", b"5", b"6", b"7"]
            assert last.skipped_entries == 0, "it is from the snapshot, which knows what was skipped"

    in_virtual_time(body)


def test_a_machine_that_fails_at_a_position_continues_without_it() -> None:
    async def body(log: ScriptedLog) -> None:
        async with opened(log, seed=1) as replica:
            await replica.execute(b"a")
            error = await expect(MachineFailed, replica.execute(b"boom"))
            assert "varlog recipe skip TOPIC 2 --force" in str(error)
            log.put(encode_skip(Skip(NAME, 2)))
        async with opened(log, seed=2) as replica:
            assert await replica.execute(b"b") == 2
            assert replica.machine.taken == [b"a", b"b"]

    in_virtual_time(body)


def test_a_command_that_its_machine_refuses_fails_only_for_its_sender() -> None:
    class Strict(Sequence):
        def apply(self, at: GLSN, command: bytes) -> int:
            if command == b"wrong":
                raise MalformedCommand("it is wrong")
            return super().apply(at, command)

    async def body(log: ScriptedLog) -> None:
        from varlog.model.errors import InvalidRequest

        opening = ReplicatedStateMachine.open(log.log, Strict(), name=NAME, entropy=random.Random(1))
        async with opening as replica:
            await expect(InvalidRequest, replica.execute(b"wrong"))
            assert await replica.execute(b"right") == 1
            assert (replica.skipped_entries, replica.malformed) == (1, 1)

    in_virtual_time(body)


def test_a_topic_of_snapshots_skips_entries_that_are_none(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = EmbeddedCluster(tmp_path, system_environment(synced=False), sync=False)
        await cluster.start()
        try:
            log, snapshots = await cluster.connect("recipes"), await cluster.connect("snapshots")
            store = TopicSnapshots(snapshots)
            for entry in noise("counter"):
                await snapshots.append(entry)
            async with Counter.open(log, snapshots=store) as counter:
                await counter.add(7)
                await counter.checkpoint()
                for entry in noise("counter"):
                    await snapshots.append(entry)
            async with Counter.open(log, snapshots=store) as counter:
                assert await counter.value() == 7
                assert counter.replica.skipped_entries == 0, "it is from the snapshot"
            assert store.skipped_entries > 40
            await log.close()
            await snapshots.close()
        finally:
            await cluster.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


@pytest.mark.process
def test_the_command_skips_what_stops_a_recipe_and_nothing_else(tmp_path: Path) -> None:
    def skip(position: int, *more: str) -> tuple[int, str]:
        done = command(
            "varlog.cli", ["recipe", "skip", "recipes", str(position), "--data", str(tmp_path), *more]
        )
        return done.returncode, done.stdout + done.stderr

    async def fill() -> None:
        cluster = EmbeddedCluster(tmp_path, system_environment())
        await cluster.start()
        log = await cluster.connect("recipes", streams=1)
        async with Counter.open(log) as counter:
            await counter.add(1)
        await log.append(b"hello")
        await log.append(MAGIC + b"\x02" + msgspec.msgpack.encode(["counter", "new"]))
        await log.close()
        await cluster.stop()

    async def value() -> int:
        cluster = EmbeddedCluster(tmp_path, system_environment())
        await cluster.start()
        try:
            log = await cluster.connect("recipes")
            try:
                async with Counter.open(log) as counter:
                    return await counter.value()
            finally:
                await log.close()
        finally:
            await cluster.stop()

    asyncio.run(fill())
    with pytest.raises(NewerCommand):
        asyncio.run(value())
    code, said = skip(1)
    assert code == 1 and "--force" in said
    code, said = skip(2)
    assert code == 1 and "every replica skips it anyway" in said
    code, said = skip(3)
    assert code == 0 and "machine 'counter'" in said
    assert asyncio.run(value()) == 1
    assert skip(1, "--force")[0] == 0
    assert asyncio.run(value()) == 0
