"""Layer 3: the metadata repository process: membership and the global order."""
