"""Mutants of a repository's files, of its restart and its rewind."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.mutants.patch import Mutant

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
        "A running repository whose journal was deleted continues with the unlinked file (law 3).",
        ((f"{_STORE}._tend", "if not linked:", "if False:"),),
        needs=(FaultKind.STORE_HARM,),
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
        needs=(FaultKind.STORE_HARM,),
    ),
    Mutant(
        "checkpoint-not-written",
        "The journal lets go of commits before the database has taken them in.",
        ((f"{_STORE}._checkpoint", "self._write_through(database, newest, journal.recorded)", "pass"),),
    ),
)


# Mutants of a repository that went back in time: what its nodes know of the order, and who believes it.

_WITNESSES = "varlog.metarepo.recovery.witnesses:Witnesses"
_RULES = "varlog.metarepo.recovery.witness_rules"
_NEEDS = (FaultKind.STORE_REWIND,)

WITNESS_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "nodes-not-compared",
        "A repository does not compare its order with what nodes know (law 3).",
        (
            (f"{_RULES}:claim_of_topic", "if theirs.high_watermark > ours.high_watermark:", "if False:"),
            (f"{_RULES}:claim_of_replica", "if word.committed_end > committed_end:", "if False:"),
        ),
        needs=_NEEDS,
    ),
    Mutant(
        "stopped-topic-ordered",
        "Positions are given in a topic that is stopped (law 3).",
        (
            (
                "varlog.metarepo.state:RepositoryState.may_give",
                " and (found is None or not found.stopped)",
                "",
            ),
        ),
        needs=_NEEDS,
    ),
    Mutant(
        "stopped-topic-sealed-at-the-older-end",
        "A log stream of a stopped topic is sealed where the older order ends (law 6).",
        (("varlog.metarepo.membership.rules:check_not_stopped", "if topic.stopped:", "if False:"),),
        needs=_NEEDS,
    ),
    Mutant(
        "stop-forgotten",
        "A topic that a node contradicts is stopped in memory alone, until that would be durable (law 3).",
        (
            (
                "varlog.metarepo.membership.rules:stop_topic",
                "stopped=why,",
                'stopped="",',
            ),
        ),
        needs=_NEEDS,
    ),
    Mutant(
        "adopted-in-the-older-epoch",
        "An order is taken from the nodes, and log streams stay in an epoch that their replicas have left (law 7).",
        ((f"{_WITNESSES}._raised", "if newest > stream.epoch or (", "if ("),),
        needs=_NEEDS,
    ),
    Mutant(
        "terms-not-raised",
        "A repository whose terms went back in time does not raise them, and no node accepts it (law 7).",
        (
            (
                "varlog.metarepo.leader_term:LeaderTerm.term_over",
                "return rules.raise_term(members, self.term, stale.seen), Done()",
                "return members, Done()",
            ),
        ),
        needs=_NEEDS,
    ),
    Mutant(
        "newer-projection-not-compared",
        "A repository does not compare its projection with what nodes received (law 7).",
        ((f"{_RULES}:claim_of_unit", "if epoch <= ours:", "if True:"),),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "newer-trim-of-units-not-compared",
        "A repository does not compare its trim with what the log units of nodes received (law 9).",
        ((f"{_RULES}:claim_of_lows", "if trimmed <= topic.trimmed:", "if True:"),),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "trim-of-units-not-adopted",
        "A projection is taken from the nodes without the trims that their log units know of (law 9).",
        (
            (
                "varlog.metarepo.recovery.rebuild:_sequenced",
                "trimmed=max(topic.trimmed, trimmed)",
                "trimmed=topic.trimmed",
            ),
        ),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "lost-replicas-count-as-reached",
        "A log stream of which every replica is lost counts as reached when all nodes are: its positions are given again (law 3).",
        (
            (
                f"{_WITNESSES}._unreported",
                "(topic.sequenced and not self._awaited)",
                "not self._awaited",
            ),
        ),
        needs=(FaultKind.BEYOND,),
    ),
    Mutant(
        "lost-topic-has-a-tail",
        "A stopped topic with replicas that were not reached returns the newest position of the others as its tail (law 5).",
        (
            (
                "varlog.metarepo.service:RepositoryService._get_tail",
                "self._witnesses.awaited or self._witnesses.unreported_on(topic.topic)",
                "self._witnesses.awaited",
            ),
        ),
        needs=(FaultKind.BEYOND,),
    ),
    Mutant(
        "lost-topic-adopts-itself",
        "A stopped topic with replicas that were not reached continues with what the others report (law 3).",
        ((f"{_WITNESSES}._survey", "*self.unreported_on(topic)", ""),),
        needs=(FaultKind.BEYOND,),
    ),
)
