"""Layer 2½: how a sequenced topic gets its next projection. Clients and the manager do it alike, and meet only here."""
