"""Mutants of a repository that went back in time: what its nodes know of the order, and who believes it."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.patch import Mutant
from varlog.testing.sim.plan import Kind

_WITNESSES = "varlog.metarepo.witnesses:Witnesses"
_RULES = "varlog.metarepo.witness_rules"
_NEEDS = (Kind.STORE_REWIND,)

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
        (("varlog.metarepo.membership_rules:check_not_stopped", "if topic.stopped:", "if False:"),),
        needs=_NEEDS,
    ),
    Mutant(
        "stop-forgotten",
        "A topic that a node contradicts is stopped in memory alone, until that would be durable (law 3).",
        (
            (
                "varlog.metarepo.membership_rules:stop_topic",
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
                "varlog.metarepo.leader_term:LeaderTerm._term_over",
                "return rules.raise_term(members, self.term, stale.seen), Done()",
                "return members, Done()",
            ),
        ),
        needs=_NEEDS,
    ),
    Mutant(
        "newer-projection-not-compared",
        "A repository does not compare its projection with what nodes were told (law 7).",
        ((f"{_RULES}:claim_of_unit", "if epoch <= ours:", "if True:"),),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "newer-trim-of-units-not-compared",
        "A repository does not compare its trim with what the log units of nodes were told (law 9).",
        ((f"{_RULES}:claim_of_lows", "if trimmed <= topic.trimmed:", "if True:"),),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "trim-of-units-not-adopted",
        "A projection is taken from the nodes without the trims that their log units know of (law 9).",
        (
            (
                "varlog.metarepo.rebuild:_sequenced",
                "trimmed=max(topic.trimmed, trimmed)",
                "trimmed=topic.trimmed",
            ),
        ),
        needs=_NEEDS,
        ordering=Ordering.SEQUENCED,
    ),
    Mutant(
        "lost-replicas-are-heard",
        "A log stream of which every replica is lost counts as heard when all nodes are: its positions are given again (law 3).",
        (
            (
                f"{_WITNESSES}._unheard",
                "(topic.sequenced and not self._awaited)",
                "not self._awaited",
            ),
        ),
        needs=(Kind.BEYOND,),
    ),
    Mutant(
        "lost-topic-has-a-tail",
        "A stopped topic with replicas that nobody heard tells the newest position of the others as its tail (law 5).",
        (
            (
                "varlog.metarepo.service:RepositoryService._get_tail",
                "self._witnesses.awaited or self._witnesses.unheard_on(topic.topic)",
                "self._witnesses.awaited",
            ),
        ),
        needs=(Kind.BEYOND,),
    ),
    Mutant(
        "lost-topic-adopts-itself",
        "A stopped topic with replicas that nobody heard continues with what the others tell (law 3).",
        ((f"{_WITNESSES}._survey", "*self.unheard_on(topic)", ""),),
        needs=(Kind.BEYOND,),
    ),
)
