"""EventLog and StreamActivity: recent manager events, and the newest per stream.

An event goes into the manager's log, and is kept for `varlog status` and the dashboard. It is typed (model/events.py); its sentence
is made where it is shown.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from varlog.manager.repair_steps import NoStep, step_event
from varlog.model.cluster import changed
from varlog.model.epoch import Epoch
from varlog.model.events import NO_LOG_STREAM, WARNINGS, Event, EventKind, sentence
from varlog.model.ids import LogStreamID
from varlog.runtime.environment import Clock
from varlog.runtime.logging import get_logger, logfmt

EVENTS_MAX: Final = 100

log = get_logger("manager")


class EventLog:
    """The newest events, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def record(self, event: Event) -> None:
        """Stamp the event with the time of day, keep it and log it."""
        self._events.append(changed(event, time_us=self._clock.wall_us()))
        log_event(event)


class StreamActivity:
    """What is done for each log stream, or waited for. Recorded when it changes, not in every round."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._current: dict[LogStreamID, Event] = {}

    def current(self, log_stream: LogStreamID) -> Event | None:
        """The current event of a stream; None: it runs, or was not seen yet."""
        return self._current.get(log_stream)

    def begin_step(self, event: Event, streams: Sequence[LogStreamID]) -> None:
        """A step of these streams starts, or has failed (`event.failure`). One event, if it is for several of them."""
        fresh = [found for found in streams if not _is_repeated(event, self._current.get(found))]
        for log_stream in fresh:
            self._current[log_stream] = event
        if fresh:
            only = fresh[0] if len(streams) == 1 else NO_LOG_STREAM
            self._events.record(changed(event, log_stream=only))

    def no_step(self, log_stream: LogStreamID, epoch: Epoch, step: NoStep) -> None:
        """The stream needs no step, or waits. That it runs again is an event: it shows how long the repair took."""
        before = self._current.pop(log_stream, None)
        event = step_event(step, log_stream=log_stream, epoch=epoch)
        if step.kind is not EventKind.RUNNING:
            self._current[log_stream] = event
            if before != event:
                log_event(event)
        elif before is not None:
            self._events.record(event)

    def retain(self, streams: Collection[LogStreamID]) -> None:
        """Forget all streams but these."""
        self._current = {found: event for found, event in self._current.items() if found in streams}


def _is_repeated(event: Event, before: Event | None) -> bool:
    """The same step again, or a retry of it after a failure."""
    if before is None:
        return False
    return event in (before, changed(before, failure=""))


def log_event(event: Event) -> None:
    named = {
        "event": event.kind,
        "log_stream": event.log_stream,
        "topic": event.topic,
        "node": event.node,
        "epoch": event.epoch,
        "address": event.address,
    }
    facts = {name: value for name, value in named.items() if value}
    level = logging.WARNING if event.kind in WARNINGS else logging.INFO
    log.log(level, logfmt(sentence(event), **facts))
