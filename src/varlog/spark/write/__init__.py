"""Exactly-once writes: tasks may run again, and their rows are in the log once."""
