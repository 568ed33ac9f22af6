"""Batch reads: what is read, how it is cut into tasks, and how a task reads its part."""
