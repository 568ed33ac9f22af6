"""varlog.open: a whole cluster in one process on one directory.

Through the public names alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import varlog
import varlog.aio
from varlog.testing.processes import PATIENCE_S


def test_the_code_of_the_readme_works_as_written(tmp_path: Path) -> None:
    with varlog.open(tmp_path / "data", topic="orders") as log:
        at = log.append(b"hello")
        assert at == varlog.Position(
            glsn=varlog.GLSN(1), llsn=varlog.LLSN(1), log_stream=varlog.LogStreamID(1)
        )
        run = log.append_batch([b"a", b"b"])
        assert [(position.glsn, position.llsn) for position in run] == [(2, 2), (3, 3)]
        assert log.read(at.glsn).data == b"hello"
        seen = []
        for entry in log.subscribe(1):
            seen.append(entry.data)
            if len(seen) == 3:
                break
        assert seen == [b"hello", b"a", b"b"]
        rows = [row for batch in log.arrow(1, log.tail() + 1) for row in batch.column("data").to_pylist()]
        assert rows == seen
        log.trim(at.glsn)
        with pytest.raises(varlog.Trimmed):
            log.read(at.glsn)


def test_the_same_with_async(tmp_path: Path) -> None:
    async def body() -> None:
        async with varlog.aio.open(tmp_path / "data", topic="orders") as log:
            at = await log.append(b"hello")
            await log.append_batch([b"a", b"b"])
            assert (await log.read(at.glsn)).data == b"hello"
            entries = [entry.data async for entry in log.subscribe(1, await log.tail() + 1)]
            assert entries == [b"hello", b"a", b"b"]
            batches = [batch async for batch in log.arrow(1, 4)]
            assert sum(batch.num_rows for batch in batches) == 3
            await log.trim(at.glsn)
        again = await varlog.aio.open(tmp_path / "data", topic="orders")
        assert await again.tail() == 3
        await again.close()

    asyncio.run(body())


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    written = []
    for start in range(0, 40, 10):
        with varlog.open(tmp_path, topic="t", streams=2) as log:
            for number in range(start, start + 10):
                written.append((log.append(b"%d" % number).glsn, b"%d" % number))
            assert [(entry.glsn, entry.data) for entry in log.subscribe(1, log.tail() + 1)] == written


def test_a_sequenced_log_continues_after_a_restart(tmp_path: Path) -> None:
    """R-SEQ-2: each time with another sequencer, which begins above everything that was written."""
    written = []
    for start in range(0, 30, 10):
        with varlog.open(tmp_path, topic="t", streams=2, ordering="sequenced") as log:
            for number in range(start, start + 10):
                written.append((log.append(b"%d" % number).glsn, b"%d" % number))
            assert [(entry.glsn, entry.data) for entry in log.subscribe(1, log.tail() + 1)] == written
    assert [glsn for glsn, _ in written] == list(range(1, 31))


def test_a_trim_survives_a_restart(tmp_path: Path) -> None:
    """R-TRIM-1, law 9."""
    with varlog.open(tmp_path) as log:
        log.append_batch([b"1", b"2", b"3"])
        log.trim(2)
    with varlog.open(tmp_path) as log:
        for glsn in (1, 2):
            with pytest.raises(varlog.Trimmed) as caught:
                log.read(glsn)
            assert caught.value.oldest == 3
        with pytest.raises(varlog.Trimmed):
            next(log.subscribe(1))
        assert [entry.data for entry in log.subscribe(None, 4)] == [b"3"]
        assert log.append(b"4").glsn == 4


def test_topics_are_separate_logs(tmp_path: Path) -> None:
    for topic in ("one", "two"):
        with varlog.open(tmp_path, topic=topic) as log:
            assert log.append(topic.encode()).glsn == 1
    with varlog.open(tmp_path, topic="one") as log:
        assert [entry.data for entry in log.subscribe(1, 2)] == [b"one"]
        assert log.tail() == 1


def test_a_directory_is_open_only_once(tmp_path: Path) -> None:
    with varlog.open(tmp_path) as log:
        with pytest.raises(varlog.StartupError, match="is open already"):
            varlog.open(tmp_path)
        assert log.append(b"still here").glsn == 1


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 99, "cluster": 1}', b"\xff"])
def test_an_identity_that_cannot_be_read_is_a_start_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "varlog.json").write_bytes(content)
    with pytest.raises(varlog.StartupError, match=r"varlog\.json"):
        varlog.open(tmp_path)


def test_a_file_is_refused_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(varlog.StartupError, match="is not a directory"):
        varlog.open(tmp_path / "file")


def test_bad_input_is_a_clear_error_and_nothing_is_lost(tmp_path: Path) -> None:
    with varlog.open(tmp_path, streams=2) as log:
        log.append_batch([b"1", b"2"])
        with pytest.raises(varlog.EmptyBatch):
            log.append_batch([])
        with pytest.raises(varlog.EntryTooLarge):
            log.append(bytes(8 * 1024 * 1024 + 1))
        with pytest.raises(varlog.BatchTooLarge):
            log.append_batch([bytes(4 * 1024 * 1024)] * 4)
        with pytest.raises(varlog.InvalidRequest):
            log.read(0)
        with pytest.raises(varlog.NotWritten):
            log.read(3)
        with pytest.raises(varlog.NotWritten):
            log.read_stream(1, 100)
        with pytest.raises(varlog.UnknownLogStream):
            log.read_stream(77, 1)
        with pytest.raises(varlog.UnknownLogStream):
            log.append(b"x", log_stream=77)
        with pytest.raises(varlog.TrimBeyondTail):
            log.trim(3)
        with pytest.raises(varlog.InvalidRequest):
            varlog.open(tmp_path / "other", topic="no good/name")
        assert [entry.data for entry in log.subscribe(1, log.tail() + 1)] == [b"1", b"2"]


def test_the_largest_entry_and_the_largest_batch_are_fine(tmp_path: Path) -> None:
    entry = bytes(range(256)) * (8 * 1024 * 1024 // 256)
    with varlog.open(tmp_path, sync=False) as log:
        log.append(entry)
        log.append_batch([b""] * 100_000)
        assert log.read(1).data == entry
        assert log.read(100_001).data == b""
        assert sum(len(entries) for entries in log.subscribe_lists(1, 100_002)) == 100_001


def test_concurrent_appends_and_batches_over_many_streams_are_one_dense_order(tmp_path: Path) -> None:
    """Laws 3 and 4, R-ORD-5, and arrow equal to subscribe."""

    async def body() -> None:
        async with varlog.aio.open(tmp_path, topic="t", streams=4, sync=False) as log:
            singles = [log.append(b"single %d" % n) for n in range(300)]
            batches = [log.append_batch([b"%d.%d" % (n, i) for i in range(20)]) for n in range(30)]
            positions = await asyncio.gather(*singles)
            runs = await asyncio.gather(*batches)
            everything = {at.glsn: b"single %d" % n for n, at in enumerate(positions)}
            everything |= {
                at.glsn: b"%d.%d" % (n, i) for n, run in enumerate(runs) for i, at in enumerate(run)
            }
            assert sorted(everything) == list(range(1, 901))
            assert {run.first.log_stream for run in runs} == {1, 2, 3, 4}
            entries = [entry async for entry in log.subscribe(1, 901)]
            assert {entry.glsn: entry.data for entry in entries} == everything
            assert [entry.glsn for entry in entries] == list(range(1, 901))
            for entry in entries[::100]:
                assert await log.read(entry.glsn) == entry
                assert await log.read_stream(entry.log_stream, entry.llsn) == entry
            rows = [row async for batch in log.arrow(1, 901) for row in batch.to_pylist()]
            assert [(row["glsn"], row["data"]) for row in rows] == [
                (entry.glsn, entry.data) for entry in entries
            ]

    asyncio.run(body())


WRITER = """
import sys, varlog
with varlog.open(sys.argv[1], topic="t", streams=2) as log:
    print("open", flush=True)
    number = log.tail()
    while True:
        for at in log.append_batch([b"%d" % (number + 1), b"%d" % (number + 2)]):
            number = at.glsn
            print(number, flush=True)
"""


@pytest.mark.process
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """R-FAIL-1: killed repeatedly in the middle of appending, it opens again and has every acknowledged entry."""
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line) if line != "open\n" else acknowledged
            if acknowledged % 50 == 0 and acknowledged:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        process.wait(timeout=PATIENCE_S)
        with varlog.open(tmp_path, topic="t") as log:
            tail = log.tail()
            assert tail >= acknowledged > 0
            numbers = [int(entry.data) for entry in log.subscribe(1, tail + 1)]
            assert numbers == list(range(1, tail + 1))


def test_importing_varlog_is_light() -> None:
    script = "import sys, varlog; print(*sorted({'pyarrow', 'numpy', 'typer', 'rich', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.split() == []


def test_every_public_name_exists() -> None:
    for name in varlog.__all__:
        if name != "__version__":
            assert getattr(varlog, name) is not None
    assert set(varlog.__all__) <= set(dir(varlog))
    with pytest.raises(AttributeError):
        varlog.nothing  # type: ignore[attr-defined]  # noqa: B018
