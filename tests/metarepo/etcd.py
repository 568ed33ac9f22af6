"""One real etcd member for a whole test module, on free ports; each store in it has a cluster id of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varlog.localcluster.etcd import EtcdPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.process import ServerProcess
from varlog.model.ids import ClusterID

READY_TIMEOUT_S = 120.0

_clusters = itertools.count(1)


def unused_cluster() -> ClusterID:
    """A cluster that has nothing in the etcd of this test run yet."""
    return ClusterID(next(_clusters))


@contextmanager
def etcd_members(directory: Path, members: int = 1) -> Iterator[tuple[EtcdPlan, list[ServerProcess]]]:
    """The members' plan, and the running processes; none is left, however the body ends."""
    ports = free_ports(2 * members)
    plan = EtcdPlan(directory, ports[:members], ports[members:], directory)
    processes = plan.processes()
    try:
        for process in processes:
            process.start()
        patience = time.monotonic() + READY_TIMEOUT_S
        while not all(process.address() for process in processes):
            assert all(process.ended() is None for process in processes), processes[0].last_words()
            assert time.monotonic() < patience, "etcd does not get ready"
            time.sleep(0.02)
        yield plan, processes
    finally:
        for process in processes:
            process.close()
