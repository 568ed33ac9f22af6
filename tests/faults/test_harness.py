"""The checkers of real histories can fail.

A claim of a client that the log contradicts is found, through the whole harness.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from varlog.testing.cluster_under_load import TOPIC, ClusterUnderLoad, plan_for, run_story
from varlog.testing.history_file import HistoryWriter, RealHistory
from varlog.verify.history import AppendCall, CallOutcome, Seen

pytestmark = pytest.mark.process


def test_an_acknowledged_entry_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """No fault is injected; one client's file has a reply that no cluster sent."""

    async def story(cluster: ClusterUnderLoad) -> None:
        claim = AppendCall(
            topic=TOPIC,
            client="liar",
            started=RealHistory().event(),
            entries=(b"never appended|",),
            first=Seen(1, 1, 1, b"never appended|"),
            ended=RealHistory().event(),
            ended_s=0.0,
            outcome=CallOutcome.DONE,
        )
        with HistoryWriter(Path(cluster.clients[0].load.history)) as writer:
            writer.write(claim)

    violations = asyncio.run(run_story(plan_for(tmp_path), story))
    broken = {violation.split(" ")[0] for violation in violations}
    assert {"AcknowledgedSurvives", "Immutable", "RealTimeOrder"} <= broken, "\n".join(violations)
    assert broken <= {
        "AcknowledgedSurvives",
        "Immutable",
        "RealTimeOrder",
        "OneEntryOnePosition",
        "BatchesAtomic",
    }
