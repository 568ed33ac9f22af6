"""Layer 3: the metadata repository, a process: membership and the global order."""
