"""Locks, leader election and fencing on a log."""
