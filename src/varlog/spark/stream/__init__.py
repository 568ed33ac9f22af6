"""Stream reads: offsets, limits and tasks of micro-batches."""
