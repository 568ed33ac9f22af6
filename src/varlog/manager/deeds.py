"""Deeds: what the manager did and saw lately, in words: into its log, and kept for `varlog status`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from varlog.model.ids import LogStreamID
from varlog.rpc.messages import Deed
from varlog.runtime.clock import Clock
from varlog.runtime.logs import get_logger, told

DEEDS_MAX: Final = 100

log = get_logger("manager")


class Deeds:
    """The newest deeds, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deeds: deque[Deed] = deque(maxlen=DEEDS_MAX)

    def __iter__(self) -> Iterator[Deed]:
        return iter(self._deeds)

    def note(self, what: str, log_stream: LogStreamID | None = None, **facts: object) -> None:
        self._deeds.append(Deed(self._clock.wall_us(), what, log_stream or LogStreamID(0)))
        if log_stream is not None:
            facts = {"log_stream": log_stream, **facts}
        log.info(told(what, **facts))

    def warn(self, what: str, **facts: object) -> None:
        """Something that an operator had better know."""
        self._deeds.append(Deed(self._clock.wall_us(), what))
        log.warning(told(what, **facts))
