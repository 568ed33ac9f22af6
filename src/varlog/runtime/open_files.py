"""File descriptors: as many as the system lets this process have, and a word in the log when there are none left.

What a shell allows is often 1024. libuv closes connections that it cannot accept for want of a descriptor, and reports nothing.
"""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from typing import Final

from varlog.runtime.logs import get_logger, logfmt

# A node with a thousand log streams has some for each, a proxy one for each connection. More than this is of no use to either.
OPEN_FILES: Final = 65_536

LOOK_S: Final = 1.0

_log = get_logger("runtime")


def allow_open_files() -> None:
    """Raise this process's own bound, as far as its system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a bound of its own below that
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def watch_open_files() -> None:
    """Forever: look once a second whether one more descriptor can be had, and log each change."""
    exhausted = False
    while True:
        try:
            os.close(os.dup(0))
        except OSError as error:
            if not exhausted:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                _log.error(
                    logfmt("no file descriptor is left: connections and new files are refused; allow more (ulimit -n)",
                         limit=limit, why=error)
                )  # fmt: skip
            exhausted = True
        else:
            if exhausted:
                _log.info(logfmt("file descriptors can be had again"))
            exhausted = False
        await asyncio.sleep(LOOK_S)
