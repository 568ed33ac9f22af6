"""Mutants of where things are: positions, rows, ranges and answers."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.patch import Mutant

_INDEX = "varlog.storage.commit_store:RowIndex"
_WAITERS = "varlog.storagenode.log_stream.ack_queue:AckQueue"
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
            f"{_WAITERS}.holds",
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
        "The repository tells a tail that is one position ahead of the order (law 5).",
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
        "stretch-cut-too-late",
        "A bounded subscriber is given the rest of the stretch in which its end lies (R-READ-3).",
        (
            "varlog.client.merge_rules:Merge.take",
            "if end is not None and position + stretch.length > end:",
            "if False:",
        ),
    ),
    _mutant(
        "tokens-overlap",
        "A sequencer gives the last position of a run of several to the next one who asks as well (R-SEQ-1).",
        (f"{_TOKENS}.give", "GLSN(first + count)", "GLSN(first + max(1, count - 1))"),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "sealed-without-the-newest",
        "A log unit that is sealed does not tell of the newest entry that it has (R-SEQ-2, R-SEQ-9).",
        (
            "varlog.storagenode.log_unit.unit:LogUnit.seal",
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
