"""Runs cells of the table of harms: on clusters, and on embedded ones.

A cluster serves cell after cell until one is not healed: then the next cell gets a new one. An embedded cell opens a copy of the
directory of a running one, which is what a crash at that moment leaves.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from varlog.client.log import Log
from varlog.embedded import EmbeddedCluster
from varlog.localcluster.plan import ClusterPlan
from varlog.model.cluster import Ordering
from varlog.model.errors import StartupError, VarlogError
from varlog.runtime.environment import system_environment
from varlog.storage.cluster_file import CLUSTER_NAME
from varlog.storage.disk_space import BALLAST_NAME
from varlog.storage.identity import IDENTITY_NAME
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harm_table import (
    HARMS,
    KINDS,
    NAMELESS,
    RUNNING,
    STOPPED,
    Cell,
    cell_of,
    kinds_in,
    must_heal,
)
from varlog.testing.harms.harmed_cluster import (
    COMMITTED,
    SEQUENCED,
    WAIT_S,
    HarmedCluster,
    HarmOutcome,
    HarmResult,
    Record,
    harmed_cluster,
    read_all,
    result_after_restart,
    result_of,
)
from varlog.testing.harms.small_segments import (
    SCRUB_INTERVAL_S,
    SEGMENT_BYTES,
    MirroredPlan,
    SmallSegmentsPlan,
)

VICTIM = "vsn-1"
CLUSTER, MIRRORED, EMBEDDED = "cluster", "mirrored", "embedded"
# This many entries fill several segments of every log stream.
FILL = 250
MORE, AFTER = 10, 5
# Files are compared with memory many times in this, and a file that is right stays as it is.
LOOK_S = 6 * SCRUB_INTERVAL_S
# The next append that reserves space makes the one, the next session of a restarted node the other.
MADE_LATER = (BALLAST_NAME, CLUSTER_NAME)
# Of an embedded cluster, where nothing has to be repaired by others.
CALL_S = 1.0

# Kind, harm, and whether the process runs.
Asked = tuple[str, str, str]

KINDS_OF_A_MIRRORED = ("repository: journal", "repository: journal's mirror")
KINDS_OF_AN_EMBEDDED = tuple(kind.name for kind in KINDS if kind.name not in KINDS_OF_A_MIRRORED[1:])
KINDS_OF_A_CLUSTER = tuple(kind for kind in KINDS_OF_AN_EMBEDDED if not kind.startswith("embedded"))
# SQLite has these in its memory.
MAPPED = ("repository: index of the WAL",)


def small_plan(directory: Path, *, mirrored: bool = False) -> ClusterPlan:
    plan = plan_for(directory, replicas=3)
    kind = MirroredPlan if mirrored else SmallSegmentsPlan
    return kind(**{name: getattr(plan, name) for name in plan.__dataclass_fields__})


# --- a cluster of processes --------------------------------------------------------------------------------------------


async def cluster_cells(directory: Path, asked: Sequence[Asked], *, mirrored: bool = False) -> list[Cell]:
    """Each of them, in as few clusters as possible. `mirrored`: the repository's journal has a mirror."""
    part = MIRRORED if mirrored else CLUSTER
    left, cells, number = list(asked), [], 0
    while left:
        number += 1
        place = directory / f"cluster-{number}"
        async with harmed_cluster(small_plan(place, mirrored=mirrored)) as cluster:
            await fill_cluster(cluster)
            while left:
                one = left.pop(0)
                found = await _cluster_cell(cluster, *one, heals=bool(must_heal(part, *one)))
                cells.append(cell_of(part, *one, found))
                print(f"{cells[-1].name}: {cells[-1].outcome} {cells[-1].words}", flush=True)
                if found.outcome is not HarmOutcome.HEALED:
                    break
        shutil.rmtree(place)
    return cells


async def fill_cluster(cluster: HarmedCluster) -> None:
    for _ in range(5):
        await cluster.append(FILL // 5)
    await cluster.wait_healed()


async def _cluster_cell(
    cluster: HarmedCluster, kind: str, harmed: str, when: str, *, heals: bool
) -> HarmResult:
    try:
        await cluster.wait_healed()
        path = await _wait_there(cluster, kind)
        older = path.read_bytes()
        sizes = cluster.log_sizes()
        if kind.startswith("repository"):
            return await _harm_repository(cluster, path, older, harmed, when, sizes, heals=heals)
        return await _harm_node(cluster, path, older, harmed, when, sizes, heals=heals)
    except (TimeoutError, VarlogError) as error:
        return HarmResult(HarmOutcome.SILENT, (f"{type(error).__name__}: {error}",))


async def _wait_there(cluster: HarmedCluster, kind: str) -> Path:
    """A file that the cell before deleted comes back with the next session, or the next change of what is in it."""
    async with asyncio.timeout(WAIT_S):
        while (path := kinds_in(cluster.plan.data, nodes=[VICTIM]).get(kind)) is None:  # noqa: ASYNC110 - files are polled
            await asyncio.sleep(0.1)
    return path


async def _harm_node(
    cluster: HarmedCluster,
    path: Path,
    older: bytes,
    harmed: str,
    when: str,
    sizes: dict[str, int],
    *,
    heals: bool,
) -> HarmResult:
    await cluster.append(MORE)
    if when == STOPPED:
        cluster.kill(VICTIM)
        _apply(path, older, harmed)
    else:
        _apply(path, older, harmed)
        left = _identity(path)
        found = await result_of(cluster, sizes, heals=heals, appends=AFTER)
        found = await _wait_scrubbed(path, left, harmed, found)
        cluster.kill(VICTIM)
        if found.outcome is not HarmOutcome.HEALED:
            return found
    number = int(VICTIM.partition("-")[2])
    # Else the status could be that of before the kill.
    await cluster.wait_status(lambda seen: not any(node.node == number and node.alive for node in seen.nodes))
    found = await result_after_restart(cluster, VICTIM, heals=heals, appends=AFTER)
    if found.outcome is HarmOutcome.SAID and cluster.supervisor.pids().get(VICTIM) is None:
        # It refuses to start: what the others have must be all the same.
        different = await cluster.differences()
        if different:
            return HarmResult(HarmOutcome.LOST, tuple(different))
    return found


async def _harm_repository(
    cluster: HarmedCluster,
    path: Path,
    older: bytes,
    harmed: str,
    when: str,
    sizes: dict[str, int],
    *,
    heals: bool,
) -> HarmResult:
    if when == RUNNING:
        _apply(path, older, harmed)
        left = _identity(path)
        found = await result_of(cluster, sizes, heals=heals, appends=AFTER)
        found = await _wait_scrubbed(path, left, harmed, found)
        if found.outcome is not HarmOutcome.HEALED:
            return found
    # All at once: the nodes have not synced the rows of these, and only the repository knows their order.
    await cluster.append(MORE)
    if harmed == "older copy" or (harmed == "replaced" and when == STOPPED):
        await cluster.wait_rows_synced()  # a file that is sound and old: only another process can know
    cluster.kill_all()
    if when == STOPPED:
        _apply(path, older, harmed)
    return await result_after_restart(cluster, heals=heals, appends=AFTER)


async def _wait_scrubbed(
    path: Path, left: tuple[int, bytes] | None, harmed: str, found: HarmResult
) -> HarmResult:
    """Wait until the process has compared its files with its memory, where nothing else shows the harm before the next start. A
    file that is then still missing was not noticed. One that is left as it is was right, or is judged by the restart."""
    if found.outcome is not HarmOutcome.HEALED or not (harmed in NAMELESS or path.name == IDENTITY_NAME):
        return found
    comes_back = left is None and path.name not in MADE_LATER
    try:
        async with asyncio.timeout(WAIT_S if comes_back else LOOK_S):
            while _identity(path) == left:  # noqa: ASYNC110 - files are polled
                await asyncio.sleep(0.05)
    except TimeoutError:
        if comes_back:
            return HarmResult(
                HarmOutcome.SILENT, (f"{path.name} was deleted {WAIT_S:g} s ago, and does not exist again",)
            )
    return found


def _identity(path: Path) -> tuple[int, bytes] | None:
    """Of the file that has the name, inode and content."""
    return (path.stat().st_ino, path.read_bytes()) if path.exists() else None


def _apply(path: Path, older: bytes, harmed: str) -> None:
    """In place: a process that has the file open sees it."""
    if path.exists():
        HARMS[harmed](path, older)


# --- embedded ------------------------------------------------------------------------------------------------------------


class EmbeddedImage:
    """Copies of the directory of an embedded cluster at two times, and what was acknowledged until `newer`. In that one the rows
    that order the newest entries are not on the node's disk yet."""

    def __init__(self, directory: Path) -> None:
        self.older = directory / "older"
        self.newer = directory / "newer"
        self.records = {topic: Record(topic) for topic in (COMMITTED, SEQUENCED)}

    async def make(self) -> None:
        live = self.older.parent / "live"
        cluster = _embedded(live)
        await cluster.start()
        try:
            logs = await _open_logs(cluster)
            for _ in range(3):
                for topic, log in logs.items():
                    await append_some(log, self.records[topic], FILL // 3, WAIT_S)
            async with asyncio.timeout(WAIT_S):
                while not {*KINDS_OF_AN_EMBEDDED} <= {*kinds_in(live)}:  # noqa: ASYNC110 - files are polled
                    await asyncio.sleep(0.05)
            shutil.copytree(live, self.older)
            for topic, log in logs.items():
                await append_some(log, self.records[topic], MORE, WAIT_S)
            shutil.copytree(live, self.newer)
            for log in logs.values():
                await log.close()
        finally:
            await cluster.stop()


async def embedded_cells(directory: Path, asked: Iterable[Asked]) -> list[Cell]:
    image = EmbeddedImage(directory)
    await image.make()
    cells = []
    for one in asked:
        found = await _embedded_cell(directory / "cell", image, *one)
        cells.append(cell_of(EMBEDDED, *one, found))
        print(f"{cells[-1].name}: {cells[-1].outcome} {cells[-1].words}", flush=True)
    return cells


async def _embedded_cell(place: Path, image: EmbeddedImage, kind: str, harmed: str, when: str) -> HarmResult:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(image.newer, place)
    path = kinds_in(place)[kind]
    was = image.older / path.relative_to(place)
    older = was.read_bytes() if was.exists() else b""
    records = {
        topic: replace(record, entries=dict(record.entries), broken=[])
        for topic, record in image.records.items()
    }
    if when == STOPPED:
        _apply(path, older, harmed)
        return await _opened(place, records)
    cluster = _embedded(place)
    await cluster.start()
    try:
        _apply(path, older, harmed)
        found = await _used(cluster, records)
    finally:
        await cluster.stop()
    return found if found.outcome is not HarmOutcome.HEALED else await _opened(place, records)


async def _opened(place: Path, records: dict[str, Record]) -> HarmResult:
    cluster = _embedded(place)
    try:
        await cluster.start()
        return await _used(cluster, records)
    except StartupError as error:
        return HarmResult(HarmOutcome.SAID, (str(error),))
    finally:
        await cluster.stop()


async def _used(cluster: EmbeddedCluster, records: dict[str, Record]) -> HarmResult:
    refused: list[str] = []
    different: list[str] = []
    for topic, record in records.items():
        try:
            async with asyncio.timeout(4 * CALL_S):
                log = await cluster.connect(topic, create=False, timeout_s=CALL_S)
        except (TimeoutError, VarlogError) as error:
            refused.append(f"{topic}: {str(error) or 'no answer'}")
            continue
        async with log:
            try:
                await append_some(log, record, AFTER)
            except (TimeoutError, VarlogError) as error:
                refused.append(f"append to {topic}: {str(error) or 'no answer'}")
            try:
                different += record.compare(await read_all(log, CALL_S))
            except (TimeoutError, VarlogError) as error:
                refused.append(f"{topic} cannot be read: {str(error) or 'no answer'}")
            different += record.broken
    if different:
        return HarmResult(HarmOutcome.LOST, (f"{len(different)} entries", *different, *refused))
    return HarmResult(HarmOutcome.SAID if refused else HarmOutcome.HEALED, tuple(refused))


def _embedded(place: Path) -> EmbeddedCluster:
    return EmbeddedCluster(place, system_environment(), segment_bytes=SEGMENT_BYTES)


async def _open_logs(cluster: EmbeddedCluster) -> dict[str, Log]:
    logs = {
        COMMITTED: await cluster.connect(COMMITTED),
        SEQUENCED: await cluster.connect(SEQUENCED, ordering=Ordering.SEQUENCED),
    }
    for log in logs.values():
        await log.connector.wait_running()
    return logs


async def append_some(log: Log, record: Record, count: int, timeout_s: float = CALL_S) -> None:
    async def one() -> None:
        data = record.next_entry()
        record.acknowledge((await log.append(data, timeout_s=timeout_s)).glsn, data)

    await asyncio.gather(*(one() for _ in range(count)))
