"""The table of harms: every file of a process, every harm, running and stopped.

Each cell must be healed or said. `make test` runs a few cells, `make faults` all of them; it prints the table and
renders docs/internals/harms.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.testing.harms.harm_cells import (
    KINDS_OF_A_CLUSTER,
    KINDS_OF_A_MIRRORED,
    KINDS_OF_AN_EMBEDDED,
    MAPPED,
    Asked,
    cluster_cells,
    embedded_cells,
    fill_cluster,
    small_plan,
)
from varlog.testing.harms.harm_table import (
    ALL_HARMS,
    RUNNING,
    STOPPED,
    Cell,
    UnknownFile,
    kinds_in,
    write_results,
    wrong,
)
from varlog.testing.harms.harmed_cluster import harmed_cluster

pytestmark = pytest.mark.process

RESULTS = Path(__file__).resolve().parents[2] / "build" / "harms"

# Cells that once lost data silently, and one cell of each file that holds entries or their order.
A_FEW: list[Asked] = [
    ("replica: newest segment", "bit in the newest bytes", STOPPED),
    ("replica: commit rows", "cut by a few bytes", STOPPED),
    ("replica: commit rows", "older copy", STOPPED),
    ("unit: newest segment", "sector zeroed", STOPPED),
    ("replica: closed segment", "bit in the middle", RUNNING),
    ("replica: commit rows", "deleted", RUNNING),
    ("unit: newest segment", "replaced", RUNNING),
    ("repository: journal", "bit in the newest bytes", STOPPED),
    ("repository: journal", "sector zeroed", STOPPED),
]
A_FEW_EMBEDDED: list[Asked] = [
    ("repository: journal", "bit in the newest bytes", STOPPED),
    ("repository: journal", "sector zeroed", STOPPED),
    ("repository: journal", "deleted", STOPPED),
    ("replica: commit rows", "older copy", STOPPED),
    ("unit: synced mark", "older copy", STOPPED),
]


def check_cells(cells: list[Cell]) -> None:
    bugs = [found for found in map(wrong, cells) if found]
    assert not bugs, "\n".join(bugs)


def asked(kinds: tuple[str, ...], owner: str, when: str) -> list[Asked]:
    return [(kind, harm, when) for kind in kinds if kind.startswith(owner) for harm in ALL_HARMS]


def test_every_file_of_a_running_cluster_has_a_row(tmp_path: Path) -> None:
    """And no row is about a file that no longer exists."""

    async def found() -> set[str]:
        async with harmed_cluster(small_plan(tmp_path)) as cluster:
            await fill_cluster(cluster)
            return set(kinds_in(tmp_path))

    assert asyncio.run(found()) == set(KINDS_OF_A_CLUSTER)


def test_an_unknown_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vmr").mkdir()
    (tmp_path / "vmr" / "something-new").touch()
    with pytest.raises(UnknownFile, match="something-new"):
        kinds_in(tmp_path)


@pytest.mark.faults
def test_a_few_cells_of_a_cluster(tmp_path: Path) -> None:
    check_cells(asyncio.run(cluster_cells(tmp_path, A_FEW)))


def test_a_few_cells_of_an_embedded_cluster(tmp_path: Path) -> None:
    check_cells(asyncio.run(embedded_cells(tmp_path, A_FEW_EMBEDDED)))


@pytest.mark.faults
@pytest.mark.parametrize("when", [STOPPED, RUNNING])
@pytest.mark.parametrize(
    "owner",
    [
        "repository: database",
        "repository: index",
        "repository: journal",
        "repository: lock",
        "node",
        "replica",
        "unit",
    ],
)
def test_files_of_a_cluster(owner: str, when: str, tmp_path: Path) -> None:
    cells = asyncio.run(cluster_cells(tmp_path, asked(KINDS_OF_A_CLUSTER, owner, when)))
    write_results(RESULTS / f"cluster-{owner.replace(': ', '-')}-{when}.json", cells)
    check_cells(cells)


@pytest.mark.faults
@pytest.mark.parametrize("when", [STOPPED, RUNNING])
def test_a_journal_and_its_mirror(when: str, tmp_path: Path) -> None:
    """One of the two is harmed, and the other one has everything: right, or said."""
    cells = asyncio.run(
        cluster_cells(tmp_path, asked(KINDS_OF_A_MIRRORED, "repository", when), mirrored=True)
    )
    write_results(RESULTS / f"mirrored-{when}.json", cells)
    check_cells(cells)


@pytest.mark.faults
@pytest.mark.parametrize("when", [STOPPED, RUNNING])
def test_files_of_an_embedded_cluster(when: str, tmp_path: Path) -> None:
    """One copy of everything: right, or said."""
    # Truncating a file that SQLite has mapped ends its process by SIGBUS. In a cluster that is a restart; here it is
    # this process.
    kinds = tuple(kind for kind in KINDS_OF_AN_EMBEDDED if when == STOPPED or kind not in MAPPED)
    cells = asyncio.run(embedded_cells(tmp_path, asked(kinds, "", when)))
    write_results(RESULTS / f"embedded-{when}.json", cells)
    check_cells(cells)
