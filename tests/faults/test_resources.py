"""A process without file descriptors, memory or disk space.

It reports the shortage, loses nothing, and recovers when it is over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from varlog import aio
from varlog.model.cluster import Ordering
from varlog.model.errors import VarlogError
from varlog.model.limits import KIB, MIB
from varlog.testing.cluster_under_load import (
    WAIT_TIMEOUT_S,
    ClusterUnderLoad,
    Story,
    plan_for,
    run_story,
)
from varlog.testing.faulty_disk import NoSmallDisk, SmallDisk
from varlog.testing.harms.harm_cells import small_plan

pytestmark = [pytest.mark.process, pytest.mark.faults]

WITHOUT_S = 3.0
# How much a process may still allocate.
MEMORY_LEFT = 4 * MIB
ORDERINGS = pytest.mark.parametrize("ordering", list(Ordering))


def check_small_story(directory: Path, story: Story, ordering: Ordering) -> None:
    """With small segments: a node needs new files all the time."""
    violations = asyncio.run(run_story(small_plan(directory), story, ordering=ordering))
    assert not violations, "\n".join(violations)


@contextmanager
def limited(pid: int, what: int, value: int) -> Iterator[None]:
    """Set the soft limit of a running process; restored if it still runs."""
    _, hard = resource.prlimit(pid, what)
    before = resource.prlimit(pid, what, (value, hard))
    try:
        yield
    finally:
        if psutil.pid_exists(pid):
            resource.prlimit(pid, what, before)


async def wait_logged(cluster: ClusterUnderLoad, name: str, *words: str) -> None:
    """Wait until the process logs one of these, or has ended, which also reports the shortage."""
    path = cluster.plan.data / "logs" / f"{name}.log"
    restarts = cluster.supervisor.restarts()[name]
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while cluster.supervisor.restarts()[name] == restarts:
            if any(word in path.read_text("utf-8", "replace") for word in words):
                return
            await asyncio.sleep(0.05)


@ORDERINGS
@pytest.mark.parametrize("victim", ["vsn-1", "vmr"])
def test_no_more_file_descriptors(victim: str, ordering: Ordering, tmp_path: Path) -> None:
    """EMFILE: no connection, no new segment."""

    async def story(cluster: ClusterUnderLoad) -> None:
        cluster.may_fail.add(victim)
        pid = cluster.supervisor.pids()[victim]
        with limited(pid, resource.RLIMIT_NOFILE, psutil.Process(pid).num_fds()):
            cluster.start_clients(2)
            await wait_logged(cluster, victim, os.strerror(errno.EMFILE))
            await asyncio.sleep(WITHOUT_S)  # the fault is the time that passes

    check_small_story(tmp_path, story, ordering)


@ORDERINGS
@pytest.mark.parametrize("victim", ["vsn-1", "vmr"])
def test_no_more_memory(victim: str, ordering: Ordering, tmp_path: Path) -> None:
    """ENOMEM: its current operation fails, or the whole process does; it comes back with everything that it
    acknowledged."""

    async def story(cluster: ClusterUnderLoad) -> None:
        cluster.may_fail.add(victim)
        pid = cluster.supervisor.pids()[victim]
        with limited(pid, resource.RLIMIT_AS, psutil.Process(pid).memory_info().vms + MEMORY_LEFT):
            cluster.start_clients(2, entry_bytes_max=64 * KIB)
            await asyncio.sleep(2 * WITHOUT_S)  # the fault is the time that passes

    check_small_story(tmp_path, story, ordering)


@ORDERINGS
def test_the_disk_of_the_repository_is_full(ordering: Ordering, tmp_path: Path) -> None:
    """Changes of the cluster are refused, with the reason; the order does not change, and everything continues when
    there is space."""
    try:
        with SmallDisk(tmp_path / "vmr", size_mib=24) as disk:

            async def story(cluster: ClusterUnderLoad) -> None:
                cluster.may_fail.add("vmr")
                disk.fill()
                refused = await refused_topics(cluster)
                assert refused, "a repository without room made topics without end"
                print("refused:", refused)
                disk.free()

            violations = asyncio.run(run_story(plan_for(tmp_path), story, ordering=ordering))
            assert not violations, "\n".join(violations)
    except NoSmallDisk as refused:
        pytest.skip(f"NOT TESTED: no small disk can be mounted here ({refused}); run it as root")


async def refused_topics(cluster: ClusterUnderLoad) -> str:
    """Create topics until the repository refuses one: a database grows by pages."""
    async with asyncio.timeout(WAIT_TIMEOUT_S), aio.admin(cluster.address) as admin:
        for number in range(200):
            try:
                await admin.create_topic(f"topic-{number}", streams=1)
            except VarlogError as error:
                return str(error)
    return ""
