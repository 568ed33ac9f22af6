"""allow_open_files: as many open files as the system lets this process have; what a shell allows is often 1024."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

# A node with a thousand log streams has some for each, a proxy one for each connection. More than this is of no use to either.
OPEN_FILES: Final = 65_536


def allow_open_files() -> None:
    """Raise this process's own bound, as far as its system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a bound of its own below that
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
