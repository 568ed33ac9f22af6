"""Repair of committed topics: seal, sync, unseal, replace; the next step is decided in rules."""
