"""Every test here validates the machines of replicas and log units after each of their events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from varlog.storagenode.committed.replica_machine import ReplicaMachine
from varlog.storagenode.sequenced.unit_machine import UnitMachine
from varlog.testing.validation import validate_after_events


@pytest.fixture(autouse=True, scope="session")
def _validated_machines() -> Iterator[None]:
    with validate_after_events(ReplicaMachine, UnitMachine):
        yield
