"""log.arrow gives the same entries as log.subscribe, large batches without a copy, small ones joined."""

from __future__ import annotations

import asyncio
import sys
from random import Random

import pyarrow as pa
import pytest

from tests.client.fakes import FakeCluster, run
from varlog.client.arrow import WRAP_ROWS_MIN, schema
from varlog.client.log import Log
from varlog.model.entry import Entry


async def rows(log: Log, begin: int, end: int) -> list[Entry]:
    entries = []
    async for batch in log.arrow(begin, end):
        batch.validate(full=True)
        assert batch.schema == schema()
        columns = [batch.column(name) for name in ("glsn", "llsn", "log_stream")]
        times = batch.column("timestamp").cast(pa.int64())
        parts = [column.to_pylist() for column in [*columns, times, batch.column("data")]]
        entries += [Entry(*row) for row in zip(*parts, strict=True)]
    return entries


@pytest.mark.parametrize(("begin", "end"), [(1, 4001), (700, 3211), (5, 6), (9, 9)])
def test_arrow_equals_subscribe_for_any_mixture_of_batch_sizes(begin: int, end: int, seed: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=3)
        cluster.fetch_bytes_most = 20_000
        await cluster.start()
        random = Random(seed)
        async with await cluster.connect() as log:
            while cluster.tail < 4000:
                size = random.choice([1, 2, 10, WRAP_ROWS_MIN, 700])
                await log.append_batch([random.randbytes(random.choice([0, 1, 30])) for _ in range(size)])
            assert await rows(log, begin, end) == [entry async for entry in log.subscribe(begin, end)]

    run(body())


def test_single_appends_are_joined_into_few_record_batches() -> None:
    async def body() -> None:
        cluster = FakeCluster(streams=2)
        await cluster.start()
        async with await cluster.connect() as log:
            for number in range(200):
                await log.append_batch([b"%d" % number])
            batches = [batch async for batch in log.arrow(1, 201)]
        assert sum(batch.num_rows for batch in batches) == 200
        assert len(batches) <= 4

    run(body())


def test_a_large_batch_is_wrapped_where_it_lies() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append_batch([bytes(100)] * 1000)
            before = pa.total_allocated_bytes()
            batches = [batch async for batch in log.arrow(1, 1001)]
            assert [batch.num_rows for batch in batches] == [1000]
            assert pa.total_allocated_bytes() - before < 10_000

    run(body())


def test_without_pyarrow_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(ModuleNotFoundError, match=r"pip install 'varlog\[arrow\]'"):
                await anext(log.arrow(1))

    asyncio.run(body())
