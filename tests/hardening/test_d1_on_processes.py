"""D1 on real processes: power loss, then harm at the end of the journal.

Before, the newest record counted as torn, the order of the newest acknowledged entries was forgotten silently, and
their positions were assigned to other entries.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harm_table import (
    FileHarm,
    flip_last_bit,
    flip_newest_bit,
    truncate_newest_bytes,
    zero_newest_sector,
)
from varlog.testing.harms.harmed_cluster import HarmOutcome, HarmResult, harmed_cluster, result_after_restart

pytestmark = pytest.mark.process


async def after_power_loss(directory: Path, harm: FileHarm, *, heals: bool) -> HarmResult:
    async with harmed_cluster(plan_for(directory, replicas=3), [Ordering.COMMITTED]) as cluster:
        await cluster.append(20)
        [journal] = (directory / "vmr").glob("*.journal")
        older = journal.read_bytes()
        # All appended at once, and killed at once: the nodes have not synced the rows that order them.
        await cluster.append(300)
        cluster.kill_all()
        harm(journal, older)
        return await result_after_restart(cluster, heals=heals, appends=300)


@pytest.mark.parametrize(
    "harm",
    [
        flip_newest_bit,
        pytest.param(flip_last_bit, marks=pytest.mark.faults),
        pytest.param(zero_newest_sector, marks=pytest.mark.faults),
    ],
)
def test_one_bad_bit_or_sector_in_the_newest_record_loses_nothing(harm: FileHarm, tmp_path: Path) -> None:
    result = asyncio.run(after_power_loss(tmp_path, harm, heals=True))
    assert result.outcome is HarmOutcome.HEALED, result


def test_missing_bytes_at_the_end_of_the_journal_are_noticed(tmp_path: Path) -> None:
    """More than one copy may be gone: right, or said."""
    result = asyncio.run(after_power_loss(tmp_path, truncate_newest_bytes, heals=False))
    assert result.right_or_said, result
