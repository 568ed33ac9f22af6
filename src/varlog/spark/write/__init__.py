"""Writes: tasks that may be run again, and rows that are in the log once."""
