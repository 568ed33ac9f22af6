"""Bugs planted in production code, each found by the simulator."""
