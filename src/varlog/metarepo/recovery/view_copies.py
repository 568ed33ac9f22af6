"""ViewCopies: sends each storage node a copy of the view when it changed.

What names and replica sets there are is then known outside the one store of the repository (`vmr recover`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from varlog.metarepo.ordering.sessions import NodeSessions
from varlog.metarepo.state import RepositoryState
from varlog.model.limits import FRAME_BYTES_MAX, MIB
from varlog.model.projection import Projection
from varlog.runtime.logging import get_logger, logfmt
from varlog.storage.view_copy import ViewCopy, encode_view_copy

# The first change is sent at once; what changes within this time after it goes out as one, unless it is a projection:
# that is the order of a sequenced topic, and nothing else outside the store has it.
COPY_INTERVAL_S: Final = 1.0
COPY_BYTES_PER_S: Final = 8 * MIB
COPY_BYTES_MAX: Final = FRAME_BYTES_MAX - MIB

_log = get_logger("metarepo")


class ViewCopies:
    """`due` is set when the view has changed, or a session has begun."""

    def __init__(
        self, state: RepositoryState, term: Callable[[], int], sessions: NodeSessions, due: asyncio.Event
    ) -> None:
        self._state = state
        self._term = term
        self._sessions = sessions
        self._due = due

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            sent, sent_bytes = self._state.view.projections, self._send()
            if sent_bytes:
                await asyncio.sleep(sent_bytes / COPY_BYTES_PER_S)
                await self._pause(sent)

    async def _pause(self, sent: tuple[Projection, ...]) -> None:
        """The interval, or until the projections are others than those that were sent."""
        changed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COPY_INTERVAL_S):
                while self._state.view.projections == sent:
                    await self._due.wait()
                    self._due.clear()
                    changed = True
        if changed:
            self._due.set()

    def _send(self) -> int:
        """To those that have another revision; how many bytes went out."""
        if any(topic.stopped for topic in self._state.view.topics):
            return 0  # this repository may be the one that went back in time: what the nodes have is the better copy
        revision = self._state.view.revision
        behind = self._sessions.without_view(revision)
        if not behind:
            return 0
        content = encode_view_copy(view_copy(self._state, self._term()))
        if len(content) > COPY_BYTES_MAX:
            _log.error(logfmt("the view is too large for the nodes to keep a copy", bytes=len(content)))
            return 0
        for session in behind:
            session.send_view(revision, content)
        return len(content) * len(behind)


def view_copy(state: RepositoryState, term: int) -> ViewCopy:
    """What the nodes keep of the present state."""
    members = state.members
    return ViewCopy(
        term,
        members.view,
        members.next_topic,
        members.next_log_stream,
        members.unused,
        members.foreign,
    )
