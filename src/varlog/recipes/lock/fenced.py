"""FencedResource: whatever a lock or a leader protects refuses those who lost it and do not know it yet: older tokens.

A process that stands still between the look at its lock and the deed does the deed late. No lock can prevent that; the resource
can, because tokens grow from grant to grant. Put one where all requests come by, and keep `newest` with the data:

    files = FencedResource("reports", newest=stored_token)
    files.admit(request.token)      # StaleToken: somebody newer was here
"""

from __future__ import annotations

from varlog.model.errors import InvalidRequest
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.errors import StaleToken


class FencedResource:
    """The newest token that was seen, which only grows. Whoever has it may come again and again."""

    def __init__(self, what: str, newest: GLSN | int = NO_GLSN) -> None:
        self.what = what
        self.newest = GLSN(newest)

    def admit(self, token: GLSN | int) -> GLSN:
        """The token, which is the newest from now on. StaleToken, and nothing is to be done, if a newer one was here."""
        if token <= 0:
            raise InvalidRequest(f"{token} is no fencing token: take that of the hold")
        if token < self.newest:
            raise StaleToken(self.what, GLSN(token), self.newest)
        self.newest = GLSN(token)
        return self.newest
