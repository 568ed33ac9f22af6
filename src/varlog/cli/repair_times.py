"""How long the manager's repair took, out of what it says it did. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from varlog.rpc.messages import ManagerEvent

_SILENT = re.compile(r"storage node \d+ does not answer")
_BACK = re.compile(r"storage node \d+ answers again")
_RUNS = "it runs"


def sealing_s(events: Sequence[ManagerEvent], ready_us: int) -> float | None:
    """From the first sign of the fault, a silent node or a stream to be sealed, to the last step before the node was back."""
    until_us = _returned_us(events, ready_us)
    signs = [event for event in events if event.log_stream or _SILENT.match(event.what)]
    steps = [event.time_us for event in signs if until_us is None or event.time_us < until_us]
    return (steps[-1] - steps[0]) / 1e6 if steps else None


def reopening_s(events: Sequence[ManagerEvent], ready_us: int) -> float | None:
    """From the moment the manager saw the node again until the last of the streams ran."""
    since_us = _returned_us(events, ready_us)
    runs_us = [event.time_us for event in events if event.what.startswith(_RUNS)]
    return (runs_us[-1] - since_us) / 1e6 if since_us is not None and runs_us else None


def _returned_us(events: Sequence[ManagerEvent], ready_us: int) -> int | None:
    """When the manager saw that the node is back: it says so, unless the node was away for less than a heartbeat and only the
    other replicas told of it; then it is its first step once the node was ready."""
    said = (event.time_us for event in events if _BACK.match(event.what))
    stepped = (event.time_us for event in events if event.log_stream and event.time_us >= ready_us)
    return next(said, None) or next(stepped, None)
