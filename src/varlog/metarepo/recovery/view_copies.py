"""ViewCopies: sends each storage node a copy of the view when it changes.

So names and replica sets are known outside the one store of the repository (`vmr recover`).
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

# The first change is sent immediately; further changes within this interval are sent together, except a projection: it is the order
# of a sequenced topic, and nothing else outside the store has it.
COPY_INTERVAL_S: Final = 1.0
COPY_BYTES_PER_S: Final = 8 * MIB
COPY_BYTES_MAX: Final = FRAME_BYTES_MAX - MIB

_log = get_logger("metarepo")


class ViewCopies:
    """Sends the copies. `due` is set when the view has changed, or a session has begun."""

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
        """Wait for the interval, or until the projections differ from those that were sent."""
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
        """Send the view to the nodes that have another revision. Returns how many bytes were sent."""
        if any(topic.stopped for topic in self._state.view.topics):
            return 0  # this repository may have been rolled back: then the nodes have the better copy
        revision = self._state.view.revision
        behind = self._sessions.without_view(revision)
        if not behind:
            return 0
        content = encode_view_copy(view_copy(self._state, self._term()))
        if len(content) > COPY_BYTES_MAX:
            _log.error(logfmt("the view is too large for copies on the nodes", bytes=len(content)))
            return 0
        for session in behind:
            session.send_view(revision, content)
        return len(content) * len(behind)


def view_copy(state: RepositoryState, term: int) -> ViewCopy:
    """The copy of the current state that nodes store."""
    members = state.members
    return ViewCopy(
        term,
        members.view,
        members.next_topic,
        members.next_log_stream,
        members.unused,
        members.foreign,
    )
