"""A work queue on a log."""
