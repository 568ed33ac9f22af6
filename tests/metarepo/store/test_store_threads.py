"""One metadata store under real threads: its worker commits to journal and database while the loop asks for more, and other threads
open copies of its files."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem, StoreChange
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.runtime.environment import system_environment

SECONDS = 6.0
KEYS = 40


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def some_changes(rng: random.Random, number: int) -> list[StoreChange]:
    """Mostly puts, as cuts are; now and then what goes to the database and takes the journal in."""
    changes: list[StoreChange] = [
        PutItem(f"key/{rng.randrange(KEYS):03d}", b"%d" % number * rng.randrange(1, 200))
        for _ in range(rng.randrange(1, 5))
    ]
    if rng.random() < 0.05:
        changes.append(DeleteItem(f"key/{rng.randrange(KEYS):03d}"))
    if rng.random() < 0.02:
        begin = rng.randrange(KEYS)
        changes.append(DeleteItems(f"key/{begin:03d}", f"key/{begin + 3:03d}"))
    return changes


def apply(model: dict[str, bytes], changes: list[StoreChange]) -> None:
    for change in changes:
        match change:
            case PutItem():
                model[change.key] = change.value
            case DeleteItem():
                model.pop(change.key, None)
            case DeleteItems():
                for key in [key for key in model if change.begin <= key < change.end]:
                    del model[key]


def spin(stop: threading.Event) -> None:
    """Something that never waits: it takes the interpreter away at every place where it can be."""
    count = 0
    while not stop.is_set():
        count += 1


def test_commits_are_whole_and_in_order_whatever_else_runs(tmp_path: Path, seed: int) -> None:
    """What a crash at any moment would leave is what was acknowledged, or that and the commits in flight."""

    async def work() -> None:
        rng = random.Random(seed)
        model: dict[str, bytes] = {}
        number, rounds, until = 0, 0, time.monotonic() + SECONDS
        while time.monotonic() < until:
            rounds += 1
            store = SqliteStore(tmp_path / "metadata.db", system_environment(synced=False), synced=False)
            opened = await store.open()
            assert dict(opened.items) == model
            for _ in range(rng.randrange(1, 60)):
                waiting = []
                for _ in range(rng.randrange(1, 6)):
                    number += 1
                    changes = some_changes(rng, number)
                    apply(model, changes)
                    waiting.append(asyncio.ensure_future(store.commit(changes)))
                await asyncio.gather(*waiting)
            if rng.random() < 0.5:
                await check_crash(tmp_path, model)
            await store.close()
        assert rounds > 1

    stop = threading.Event()
    spinner = threading.Thread(target=spin, args=(stop,), daemon=True)
    spinner.start()
    try:
        asyncio.run(work())
    finally:
        stop.set()
        spinner.join()


async def check_crash(directory: Path, model: dict[str, bytes]) -> None:
    """A copy of the files while the store has them open, opened by another one."""
    copy = directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in directory.glob("metadata.db*"):
        shutil.copy(path, copy)
    store = SqliteStore(copy / "metadata.db", system_environment(synced=False), synced=False)
    try:
        assert dict((await store.open()).items) == model
    finally:
        await store.close()
