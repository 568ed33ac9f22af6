"""Clock: wall time, for stamps and display only. Waiting uses the event loop's own time, which a simulator replaces."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time of day comes from."""

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000
