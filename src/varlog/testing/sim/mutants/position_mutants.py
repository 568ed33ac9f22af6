"""Mutants of positions: rows, ranges, names, beginnings and writes."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.mutants.patch import Mutant

_INDEX = "varlog.storage.committed.commit_store:RowIndex"
_WAITERS = "varlog.storagenode.committed.ack_queue:AckQueue"
_TOKENS = "varlog.sequencer.token_machine:TokenMachine"


def _mutant(
    name: str, wrong: str, *edits: tuple[str, str, str], ordering: Ordering = Ordering.COMMITTED
) -> Mutant:
    return Mutant(name, wrong, edits, ordering=ordering)


ORDER_MUTANTS: Final[tuple[Mutant, ...]] = (
    _mutant(
        "row-of-the-entry-before",
        "A replica looks for the first entry of a commit row in the row before it (law 3).",
        (
            f"{_INDEX}.glsn_of",
            "bisect_right(self.llsns, llsn) - 1",
            "max(0, bisect_right(self.llsns, llsn - 1) - 1)",
        ),
    ),
    _mutant(
        "rows-merged-over-a-gap",
        "Commit rows of one stream are merged although entries of another one are between them (law 3).",
        ("varlog.model.commit:CommitRow.follows", "self.glsn_begin == earlier.glsn_end\n", "True\n"),
    ),
    _mutant(
        "answered-with-the-row",
        "A primary answers every append of a commit row with the position of the first one (law 10).",
        (f"{_WAITERS}.answer", "GLSN(row.glsn_begin + first - row.llsn_begin)", "row.glsn_begin"),
    ),
    _mutant(
        "retry-joins-any-batch",
        "A primary answers a retry with the position of any batch of the same producer (R-ORD-7).",
        (
            f"{_WAITERS}.has",
            "(header.producer, header.sequence) == key",
            "header.producer == key[0]",
        ),
        (
            f"{_WAITERS}.answer",
            "for joined in self._joined.pop((header.producer, header.sequence), ()):",
            "for joined in self._joined.pop(next((k for k in self._joined if k[0] == header.producer), None), ()):",
        ),
    ),
    _mutant(
        "tail-ahead",
        "The repository returns a tail that is one position ahead of the order (law 5).",
        (
            "varlog.metarepo.service:RepositoryService._get_tail",
            "m.GetTailReply(max(newest, topic.known), topic.trimmed)",
            "m.GetTailReply(type(newest)(newest + 1), topic.trimmed)",
        ),
    ),
    _mutant(
        "batch-read-backwards",
        "A reader hands out the entries of a batch in the wrong order (R-ORD-5).",
        (
            "varlog.client.chunk:Chunk.entries",
            "map(Entry, glsns, llsns, repeat(log_stream), times, data)",
            "map(Entry, glsns, llsns, repeat(log_stream), times, data[::-1])",
        ),
    ),
    _mutant(
        "range-cut-too-late",
        "A bounded subscriber is given the rest of the range in which its end lies (R-READ-3).",
        (
            "varlog.client.merge_rules:Merge.pop_ready",
            "if end is not None and position + merged.length > end:",
            "if False:",
        ),
    ),
    _mutant(
        "tokens-overlap",
        "A sequencer gives the last position of a run of several to the next one who asks as well (R-SEQ-1).",
        (f"{_TOKENS}.grant", "GLSN(first + count)", "GLSN(first + max(1, count - 1))"),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "sealed-without-the-newest",
        "A log unit that is sealed does not report the newest entry that it has (R-SEQ-2, R-SEQ-9).",
        (
            "varlog.storagenode.sequenced.unit:LogUnit.seal",
            "epoch, store.newest, store.dense_end",
            "epoch, LLSN(max(0, store.newest - 1)), store.dense_end",
        ),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "range-of-a-stripe-forgotten",
        "A stream's positions are counted as if its topic had one stream, once its stripe has been around (R-SEQ-3).",
        (
            "varlog.model.projection:Projection.position",
            "offset = (lap * stripes + index) * found.stripe_size + inside",
            "offset = (lap + index) * found.stripe_size + inside",
        ),
        ordering=Ordering.SEQUENCED,
    ),
)


# Mutants of names and beginnings: readers, writers, and the position at which a topic begins.

NAMED_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "begun-in-memory-alone",
        "The repository says where a batch of a named writer begins, and keeps it in memory alone (law 10).",
        (
            (
                "varlog.metarepo.records:changes_between",
                "if after.writers is not before.writers:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "trim-without-respect",
        "A trim with respect_readers removes what one of them has not read.",
        (
            (
                "varlog.metarepo.service:RepositoryService._trim_topic",
                "if request.respect_readers:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "reader-falls-back",
        "A word of a named reader that comes late moves it back.",
        (
            (
                "varlog.metarepo.membership.named_rules:set_reader",
                "position if back else max(position, known.position)",
                "position",
            ),
        ),
    ),
    Mutant(
        "first-position-forgotten",
        "A repository that restarts forgets at which position a topic begins (law 4).",
        (
            (
                "varlog.metarepo.records:members_of",
                "tuple(map(_topic.decode, _values(items, TOPIC)))",
                "tuple(Topic(t.topic, t.name, t.ordering, t.trimmed) for t in map(_topic.decode, _values(items, TOPIC)))",
            ),
        ),
    ),
    Mutant(
        "begun-beyond-the-tail",
        "The repository says that a batch begins above a position which others may still get.",
        (
            (
                "varlog.metarepo.membership.named_rules:begin_write",
                "NamedWriter(topic, name, batch, high_watermark,",
                "NamedWriter(topic, name, batch, GLSN(high_watermark + 5),",
            ),
        ),
    ),
)


# Mutants of writes by several attempts: chains that are extended twice or wrongly, and copies at the wrong place.

_CHAINS = "varlog.storagenode.committed.idempotent_rules:ProducerSequences"
_CHAINED = "varlog.storagenode.committed.idempotent_appends:IdempotentAppends"
_CHAIN_RULES = "varlog.storagenode.committed.idempotent_rules"

WRITE_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "chain-not-checked",
        "A primary takes a batch of a chain wherever the chain ends (R-USE-4).",
        (
            (
                f"{_CHAINED}._extends",
                "if decision is SequenceDecision.ACCEPT:",
                "if decision is not SequenceDecision.DUPLICATE:",
            ),
        ),
    ),
    Mutant(
        "chain-by-number-alone",
        "A primary knows the batches of a chain by their numbers, and does not look at the checksums (R-USE-4).",
        (
            (
                f"{_CHAIN_RULES}:decide",
                "if sent.sequence ==",
                "sent = sent._replace(previous_crc=last.body_crc, body_crc=last.body_crc)\n    if sent.sequence ==",
            ),
        ),
    ),
    Mutant(
        "chain-pending-kept-over-a-seal",
        "A replica that is reopened believes that batches which the seal has cut are in flight (law 6).",
        ((f"{_CHAINS}.open", "    self._pending.clear()\n    self._pending_of.clear()\n", ""),),
    ),
    Mutant(
        "chain-not-searched",
        "A primary that does not know the end of a chain takes it for one that has not begun, without a look at the disk.",
        ((f"{_CHAINS}.newest", "if floor < searched_floor:", "if False:"),),
    ),
    Mutant(
        "chain-holes-ignored",
        "A replica that got batches by a restart or a sync continues as if it had recorded them.",
        ((f"{_CHAINS}.ordered", "if not noted:", "if False:"),),
    ),
    Mutant(
        "chain-forgotten-unsaid",
        "A replica forgets the oldest chain for lack of room, and does not remember that it did.",
        ((f"{_CHAINS}._remember", "self.known_from = LLSN(oldest.llsn + 1)", "pass"),),
    ),
    Mutant(
        "chain-rows-written-again",
        "An attempt writes rows that another one has written in another order (R-USE-4).",
        (
            (
                "varlog.client.writers.idempotent:IdempotentWriter._leave_out",
                "self._others.leave_out(rows)",
                "rows",
            ),
        ),
    ),
    Mutant(
        "placed-anywhere",
        "A primary takes an entry that was sent for one position at another.",
        (
            (
                f"{_CHAINED}.admits",
                "if request.expected_llsn != machine.assigned_end:",
                "if False:",
            ),
        ),
    ),
)
