"""The replicated store over three real etcd members: one that hangs costs a try, two that hang cost the term and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.metarepo.etcd import etcd_members, unused_cluster
from varlog.localcluster.process import ServerProcess
from varlog.metarepo.store.base import Fenced, MetadataStore, PutItem, StoreChange
from varlog.metarepo.store.etcd import endpoints_of, etcd_store
from varlog.model.errors import StartupError
from varlog.runtime.environment import system_environment
from varlog.testing.processes import pause_process

LEASE_S = 4.0
# Only so that nothing hangs: a busy machine may stall for longer than a lease.
WAIT_S = 90.0


@pytest.mark.parametrize("place", ["etcd://", "etcd://host", "etcd://host:1,", "etcd://host:port"])
def test_a_place_that_names_no_members_is_refused_by_name(place: str) -> None:
    with pytest.raises(StartupError, match=f"{place} does not name etcd members"):
        endpoints_of(place)


def test_members_are_those_between_the_commas() -> None:
    assert endpoints_of("etcd://a:1,b:2, c:3/") == ["a:1", "b:2", "c:3"]


def stopped(processes: list[ServerProcess]) -> None:
    for process in processes:
        pause_process(process.pid)


def woken(processes: list[ServerProcess]) -> None:
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)


async def commit_in_some_term(store: MetadataStore, change: StoreChange) -> None:
    """On a busy machine a member that hangs can cost the term: the next one continues."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await store.commit([change])
                return
            except Fenced:
                await store.open("mr:1")


@pytest.mark.process
def test_members_that_hang_cost_a_try_or_the_term_and_never_what_was_committed(tmp_path: Path) -> None:
    async def story(store_place: str, members: list[ServerProcess]) -> None:
        store = etcd_store(store_place, system_environment(), unused_cluster(), lease_s=LEASE_S)
        term = (await store.open("mr:1")).term
        await commit_in_some_term(store, PutItem("a", b"1"))
        # Whichever member is asked is among them: each hangs for a while, and a majority is always there.
        for member in members:
            stopped([member])
            await commit_in_some_term(store, PutItem("b", member.name.encode()))
            woken([member])

        stopped(members[:2])
        with pytest.raises(Fenced):
            await store.commit([PutItem("c", b"unknown")])
        async with asyncio.timeout(WAIT_S):
            assert isinstance(await store.wait_lost(), Fenced)
        woken(members[:2])
        async with asyncio.timeout(WAIT_S):
            opened = await store.open("mr:1")
        assert opened.term > term
        assert opened.items in (known := {"a": b"1", "b": b"etcd-3"}, known | {"c": b"unknown"})
        await commit_in_some_term(store, PutItem("d", b"on"))
        await store.close()

    with etcd_members(tmp_path, 3) as (plan, members):
        asyncio.run(story(plan.store, members))
