"""[A1] PURE. RefusalPace: how long a refused thread of a blocking log waits before it is answered.

Threads share one processor with the loop that serves their appends. A thread that is refused costs little, but hundreds that
try again at once leave the loop no time: nothing is served, and all are refused. So refusals of one log are answered one after
the other, with SPACING_S between two; none waits for longer than a tenth of its time for that.
"""

from __future__ import annotations

import math
from typing import Final

SPACING_S: Final = 0.0001
SHARE: Final = 0.1
# A shorter pause is not worth the change of threads.
PAUSE_S_MIN: Final = 0.001


class RefusalPace:
    """Of one log. Used by any thread without a lock: two that come at once may get the same place, which does no harm."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = -math.inf  # when the last one was, or will be, answered

    def pause_s(self, now: float, timeout_s: float) -> float:
        """How long one that may take `timeout_s` waits; 0: it is answered now."""
        self._next = at = min(max(self._next + SPACING_S, now), now + SHARE * timeout_s)
        return at - now if at - now >= PAUSE_S_MIN else 0.0
