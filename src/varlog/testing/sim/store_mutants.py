"""Mutants of the repository's own files: its journal, and a restart."""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.patch import Mutant
from varlog.testing.sim.plan import Kind

_JOURNAL = "varlog.metarepo.store.journal:Journal"
_STORE = "varlog.metarepo.store.sqlite:SqliteStore"

STORE_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "journal-not-synced",
        "The repository acknowledges a commit that is written to its journal and not synced (law 3).",
        ((f"{_JOURNAL}.append", "    if self._synced:\n        self._file.sync()\n", ""),),
    ),
    Mutant(
        "journal-overwrites-what-the-database-lacks",
        "The journal begins its next lap over commits that the database has not taken in.",
        ((f"{_JOURNAL}.append", "if self._used + skipped + sectors > len(self._places):", "if False:"),),
    ),
    Mutant(
        "journal-forgotten-at-start",
        "A repository that starts uses what is in the journal, and does not write it to the database before it begins a new one.",
        ((f"{_STORE}._take_in_journal", "self._pending.add(changes)", "pass"),),
    ),
    Mutant(
        "deleted-journal-not-noticed",
        "A running repository whose journal was deleted goes on with the file that has no name (law 3).",
        ((f"{_STORE}._tend", "if not linked:", "if False:"),),
        needs=(Kind.STORE_HARM,),
    ),
    Mutant(
        "journal-begun-before-the-database-has-all",
        "A repository whose journal was deleted begins a new one without what was in the old one (law 3).",
        (
            (
                f"{_STORE}._tend",
                "self._checkpoint(database, journal, journal.newest)",
                "self._pending = _Pending()",
            ),
        ),
        needs=(Kind.STORE_HARM,),
    ),
    Mutant(
        "checkpoint-not-written",
        "The journal lets go of commits before the database has taken them in.",
        ((f"{_STORE}._checkpoint", "self._write_through(database, newest, journal.recorded)", "pass"),),
    ),
)
