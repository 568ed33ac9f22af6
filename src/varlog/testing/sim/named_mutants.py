"""Mutants of names and beginnings: readers, writers, and the position at which a topic begins."""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.patch import Mutant

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
        "A trim that was told to respect the readers takes away what one of them has not read.",
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
                "varlog.metarepo.reader_rules:set_reader",
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
                "varlog.metarepo.writer_rules:begin_write",
                "NamedWriter(topic, name, batch, high_watermark,",
                "NamedWriter(topic, name, batch, GLSN(high_watermark + 5),",
            ),
        ),
    ),
)
