"""Recipe jobs: which job does which work."""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.recipe_job import Job
from varlog.testing.sim.recipe_locks import ElectionJob, LockJob
from varlog.testing.sim.recipe_machines import CounterJob, LedgerJob, QueueJob
from varlog.testing.sim.recipe_maps import KeyValueJob, RegistersJob, SerializableJob, SnapshotJob
from varlog.testing.sim.recipe_plan import Work

JOBS: Final[dict[Work, type[Job]]] = {
    job.work: job
    for job in (
        LedgerJob,
        CounterJob,
        QueueJob,
        LockJob,
        ElectionJob,
        KeyValueJob,
        RegistersJob,
        SnapshotJob,
        SerializableJob,
    )
}
