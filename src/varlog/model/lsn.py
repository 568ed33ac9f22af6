"""GLSN (position in a topic's order) and LLSN (position in one log stream).

Both count 1, 2, 3 … without gaps (law 4).
"""

from __future__ import annotations

from typing import NewType

GLSN = NewType("GLSN", int)
LLSN = NewType("LLSN", int)

# Position 0 is never given out: it means "nothing yet", as a watermark of an empty log.
NO_GLSN = GLSN(0)
NO_LLSN = LLSN(0)
FIRST_GLSN = GLSN(1)
FIRST_LLSN = LLSN(1)

LSN_MAX = 2**63 - 1
