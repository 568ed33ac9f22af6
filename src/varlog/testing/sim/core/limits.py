"""Tight limits: bounds of the production code, set to small random values.

So what is rare in production is common in a run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from varlog.model.limits import KIB, MIB

# Where the bound is used, its name there, and the values that a run may give it.
BOUNDS: Final[tuple[tuple[str, str, tuple[int, ...]], ...]] = (
    ("varlog.metarepo.ordering.commit_loop", "CUTS_PER_BASE", (3, 10, 512)),
    ("varlog.metarepo.ordering.outbox", "ROWS_PER_MESSAGE_MAX", (2, 8192)),
    ("varlog.metarepo.ordering.sessions", "MESSAGES_BEFORE_PAUSE", (2, 64)),
    ("varlog.storage.segment_file", "RESERVE_STEP_BYTES", (512, 2048, 8 * MIB)),
    ("varlog.storage.committed.index", "INDEX_STRIDE_BYTES", (128, 4096)),
    ("varlog.storage.committed.commit_store", "_COMPACT_ROWS_MIN", (4, 4096)),
    ("varlog.storage.committed.commit_store", "_FORGET_ROWS_MIN", (4, 1024)),
    ("varlog.storage.committed.log_store", "_OPEN_SEGMENTS_MAX", (1, 16)),
    ("varlog.storage.committed.headers", "RANGE_BYTES", (1, 700, 8 * MIB)),
    ("varlog.storagenode.committed.writer", "GROUP_BATCHES_MAX", (2, 512)),
    ("varlog.storagenode.committed.replica", "UNCOMMITTED_BATCHES_MAX", (3, 16_384)),
    ("varlog.storagenode.committed.reader", "FETCH_BYTES_MAX", (700, 4 * MIB)),
    ("varlog.storagenode.committed.sync", "COPY_BYTES_MAX", (1, 700, 4 * MIB)),
    ("varlog.storage.committed.copy", "COPY_ROWS_MAX", (1, 8192)),
    ("varlog.client.committed.sender", "GATHER_ENTRIES_MAX", (3, 4096)),
    ("varlog.client.batcher", "GATHER_REQUESTS_MAX", (1, 2, 4)),
    ("varlog.storagenode.committed.admission_queue", "UNCOMMITTED_BATCHES_MAX", (3, 16_384)),
    ("varlog.storagenode.committed.idempotent_rules", "PRODUCERS_MAX", (1, 3, 4_096)),
    ("varlog.storagenode.committed.idempotent_appends", "PAGE_BATCHES", (1, 3, 10_000)),
    ("varlog.client.writers.window", "WINDOW_BATCHES", (1, 4, 256)),
)


# Of the repository's own files, drawn apart from the others. Of the smallest journal two records fill a lap.
STORE_BOUNDS: Final[tuple[tuple[str, str, tuple[float, ...]], ...]] = (
    ("varlog.metarepo.store.journal", "JOURNAL_BYTES", (32 * KIB, 64 * KIB, 256 * KIB)),
    ("varlog.metarepo.store.sqlite", "NAMES_S", (0.2, 1.0, 3.0)),
)

# Of sequenced topics, drawn apart from the others.
SEQUENCED_BOUNDS: Final[tuple[tuple[str, str, tuple[int, ...]], ...]] = (
    ("varlog.storage.sequenced.page_index", "BLOCK_PAGES_MAX", (4, 4096)),
    ("varlog.storage.sequenced.page_store", "_OPEN_SEGMENTS_MAX", (1, 16)),
    ("varlog.storagenode.sequenced.writer", "GROUP_BATCHES_MAX", (2, 512)),
    ("varlog.storagenode.sequenced.unit", "UNCOMMITTED_BATCHES_MAX", (3, 16_384)),
    ("varlog.storagenode.sequenced.reader", "FETCH_BYTES_MAX", (1, 700, 4 * MIB)),
    ("varlog.storagenode.sequenced.reader", "COPY_BYTES_MAX", (1, 700, 4 * MIB)),
    ("varlog.storagenode.sequenced.reader", "LIST_PAGES_MAX", (2, 20, 4096)),
    ("varlog.storagenode.sequenced.sync", "LIST_PAGES_MAX", (2, 20, 4096)),
    ("varlog.client.sequenced.sender", "GATHER_ENTRIES_MAX", (3, 4096)),
    ("varlog.client.sequenced.repair", "GIVEN_UP_MAX", (0, 1, 16)),
)

# Of recipes, drawn apart from the others.
RECIPE_BOUNDS: Final[tuple[tuple[str, str, tuple[float, ...]], ...]] = (
    ("varlog.recipes.core.commands", "ATTEMPT_S", (0.05, 0.3, 2.0)),
    ("varlog.recipes.core.command_rules", "CLIENTS_MAX", (3, 10, 10_000)),
    ("varlog.recipes.core.command_rules", "WINDOW_COMMANDS_MAX", (1, 3, 4096)),
    ("varlog.recipes.core.replicated", "PIECE_ENTRIES", (1, 3, 512)),
    ("varlog.recipes.core.topic_snapshots", "CHUNK_BYTES", (40, 400, MIB)),
    ("varlog.recipes.core.topic_snapshots", "BATCH_CHUNKS_MAX", (1, 3, 30)),
)

Bounds = tuple[tuple[str, str, tuple[float, ...]], ...]


@contextmanager
def tight_limits(rng: random.Random, bounds: Bounds | None = None) -> Iterator[None]:
    """Within, every bound has a value drawn for this run."""
    before: list[tuple[Any, str, float]] = []
    try:
        for module_name, name, choices in BOUNDS if bounds is None else bounds:
            module = import_module(module_name)
            if not isinstance(getattr(module, name, None), int | float):
                raise LookupError(
                    f"{module_name}.{name} is gone: the production code moved, so move its bound in {__name__}"
                )
            before.append((module, name, getattr(module, name)))
            setattr(module, name, rng.choice(choices))
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
