"""Appends, reads and subscriptions of a sequenced topic: tokens, chains, projections."""
