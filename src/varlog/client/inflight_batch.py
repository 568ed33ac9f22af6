"""[A2] InflightBatch: one packed batch on its way to the log, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable

from varlog.client.append_rules import Attempt
from varlog.model.ids import LogStreamID


class InflightBatch:
    """`attempt` is set while the outcome of a try is open: the batch may be in the log by it. `dropped`: everyone in it was told
    that it is not in the log, so it must not be sent any more. `on_nowhere` is called when an open outcome turns out to be a
    no, before the batch is sent anew."""

    __slots__ = ("attempt", "batch", "chosen", "dropped", "last_error", "on_nowhere", "timeout_s", "tried")

    def __init__(
        self,
        batch: bytearray,
        chosen: LogStreamID | None,
        timeout_s: float,
        on_nowhere: Callable[[InflightBatch], None] | None = None,
    ) -> None:
        self.batch = batch
        self.chosen = chosen
        self.timeout_s = timeout_s
        self.on_nowhere = on_nowhere
        self.attempt: Attempt | None = None
        self.dropped = False
        self.last_error: BaseException | None = None
        self.tried: dict[LogStreamID, None] = {}

    @property
    def sent(self) -> bool:
        """It may be in the log."""
        return self.attempt is not None
