"""A user's program: embedded, on a cluster, with async, with errors.

test_types.py checks it with mypy --strict.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import assert_type

import varlog
from varlog import aio
from varlog.recipes.blocking import KeyValue


def embedded(directory: Path) -> list[bytes]:
    with varlog.open(directory, topic="orders", ordering="committed") as log:
        assert_type(log, varlog.Log)
        at = assert_type(log.append(b"hello"), varlog.Position)
        run = assert_type(log.append_batch([b"a", bytearray(b"b"), memoryview(b"c")]), varlog.Run)
        entry = assert_type(log.read(at.glsn), varlog.Entry)
        assert_type(entry.glsn, varlog.GLSN)
        assert_type(entry.data, bytes)
        assert_type(log.tail(), varlog.GLSN)
        data = [found.data for found in log.subscribe(run.first.glsn, end=log.tail() + 1)]
        log.trim(at.glsn)
    return data


def recipe(log: varlog.Log) -> bytes | None:
    with KeyValue(log) as kv:
        kv.put("colour", b"blue")
        found = kv.get("colour")
        return found.value if found else None


def cluster(address: str) -> varlog.Ordering:
    with varlog.admin(address) as admin:
        assert_type(admin, varlog.Admin)
    with varlog.connect(address, "orders", create=True, streams=2, timeout_s=5.0) as log:
        return assert_type(log.topic, varlog.Topic).ordering


async def asynchronous(directory: Path) -> int:
    opened = await aio.open(directory)
    await opened.close()
    async with aio.open(directory) as log:
        assert_type(log, aio.Log)
        positions = await asyncio.gather(*(log.append(b"%d" % number) for number in range(3)))
        assert_type(positions, list[varlog.Position])
        async for entry in log.subscribe(1, end=positions[-1].glsn + 1):
            assert_type(entry, varlog.Entry)
    async with varlog.aio.connect("127.0.0.1:7100", topic="orders") as remote:
        return len(await remote.readers())


def append_or_say_why(log: varlog.Log, data: bytes) -> str:
    try:
        return str(log.append(data, timeout_s=2.0).glsn)
    except varlog.Overloaded as refused:
        return f"again in {assert_type(refused.retry_after_s, float)} s"
    except varlog.EntryTooLarge as refused:
        return f"at most {assert_type(refused.limit, int)} bytes"
    except varlog.Rejected as refused:
        return f"certainly not in the log: {refused}"
    except varlog.OutcomeUnknown:
        return "perhaps in the log"
    except (varlog.Unavailable, varlog.Trimmed, varlog.VarlogError) as other:
        return str(other)
