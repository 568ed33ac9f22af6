"""Replica of a log stream (committed ordering): machine, driver and helpers."""
