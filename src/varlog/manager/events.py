"""EventLog: what the manager did and saw lately, in words: into its log, and kept for `varlog status`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from varlog.model.ids import LogStreamID
from varlog.rpc.messages import ManagerEvent
from varlog.runtime.environment import Clock
from varlog.runtime.logging import get_logger, logfmt

EVENTS_MAX: Final = 100

log = get_logger("manager")


class EventLog:
    """The newest events, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[ManagerEvent] = deque(maxlen=EVENTS_MAX)

    def __iter__(self) -> Iterator[ManagerEvent]:
        return iter(self._events)

    def record(self, what: str, log_stream: LogStreamID | None = None, **facts: object) -> None:
        self._events.append(ManagerEvent(self._clock.wall_us(), what, log_stream or LogStreamID(0)))
        if log_stream is not None:
            facts = {"log_stream": log_stream, **facts}
        log.info(logfmt(what, **facts))

    def record_warning(self, what: str, **facts: object) -> None:
        """Something that an operator had better know."""
        self._events.append(ManagerEvent(self._clock.wall_us(), what))
        log.warning(logfmt(what, **facts))
