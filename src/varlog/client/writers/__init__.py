"""Conditional writers: idempotent, positioned and pipelined appends."""
