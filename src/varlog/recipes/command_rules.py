"""PURE. Commands that a machine does not apply: none, or of a newer version.

A machine raises one of these before it has changed anything, and for the same bytes always the same one: every replica decides
alike. The first is passed over by all. The second stops the replica, because one of a newer version would apply it and differ.
"""

from __future__ import annotations


class MalformedCommand(ValueError):
    """These bytes are no command of this machine in any version: they change nothing."""


class UnknownCommand(ValueError):
    """A well-formed command that this version does not know. `version` is what it says of itself."""

    def __init__(self, version: int | str) -> None:
        super().__init__(version)
        self.version = version
