"""Repair of sequenced topics: projections, chains, sequencers; the next step is decided in rules."""
