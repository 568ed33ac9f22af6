"""result_of: how the outcome of a harm is found, on a cluster that heals late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms import harmed_cluster
from varlog.testing.harms.harmed_cluster import HarmedCluster, HarmOutcome, result_of


class LateCluster(HarmedCluster):
    """Heals when it has been asked this often. Nothing runs."""

    def __init__(self, path: Path, healed_after: int, said: list[str]) -> None:
        super().__init__(plan_for(path))
        self.left = healed_after
        self.said = said

    def logged_since(self, sizes: dict[str, int], *levels: str) -> list[str]:
        return self.said

    async def wait_healed(self, timeout_s: float = 0.0) -> None:
        self.left -= 1
        if self.left >= 0:
            await asyncio.sleep(0)
            raise TimeoutError("not healed yet")

    async def try_append(self, count: int, *topics: str) -> list[str]:
        return ["append: refused"] if self.left >= 0 else []

    async def differences(self, *topics: str) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def status_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shown(cluster: HarmedCluster) -> list[str]:
        return []

    monkeypatch.setattr(harmed_cluster, "_shown", shown)


STOPPED = ["vmr: CRITICAL topic 'orders' is STOPPED"]


@pytest.mark.parametrize(
    ("heals", "said", "outcome"),
    [
        (True, STOPPED, HarmOutcome.HEALED),
        (True, [], HarmOutcome.HEALED),
        (False, STOPPED, HarmOutcome.SAID),
        (False, [], HarmOutcome.HEALED),
    ],
)
def test_words_end_the_wait_only_where_it_may_need_a_person(
    heals: bool, said: list[str], outcome: HarmOutcome, tmp_path: Path
) -> None:
    found = asyncio.run(result_of(LateCluster(tmp_path, 3, said), {}, heals=heals))
    assert found.outcome is outcome


def test_nothing_is_silent_before_the_last_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine: neither healed nor explained in the time that most clusters need."""

    monkeypatch.setattr(harmed_cluster, "HEAL_S", 0.0)
    found = asyncio.run(result_of(LateCluster(tmp_path, 3, []), {}))
    assert found.outcome is HarmOutcome.HEALED
    monkeypatch.setattr(harmed_cluster, "WAIT_S", 0.0)
    found = asyncio.run(result_of(LateCluster(tmp_path, 10**9, []), {}))
    assert found.outcome is HarmOutcome.SILENT
