"""Batch reads: what is read, how it is split into tasks, and how a task reads."""
