"""FencedResource: refuses requests with an older fencing token.

A process that pauses between checking its lock and acting acts too late. No lock can prevent that; the resource that the lock
protects can, because tokens grow from grant to grant. Put one where all requests pass, and store `newest` with the data:

    files = FencedResource("reports", newest=stored_token)
    files.admit(request.token)      # StaleToken: a newer token was seen
"""

from __future__ import annotations

from varlog.model.errors import InvalidRequest
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.errors import StaleToken


class FencedResource:
    """The newest token that was seen, which only grows. Its holder may use it again and again."""

    def __init__(self, what: str, newest: GLSN | int = NO_GLSN) -> None:
        self.what = what
        self.newest = GLSN(newest)

    def admit(self, token: GLSN | int) -> GLSN:
        """The token, which is the newest from now on. StaleToken, and nothing may be done, if a newer one was seen."""
        if token <= 0:
            raise InvalidRequest(f"{token} is no fencing token: use that of the guard")
        if token < self.newest:
            raise StaleToken(self.what, GLSN(token), self.newest)
        self.newest = GLSN(token)
        return self.newest
