"""Layer 3: the metadata repository. Who exists, and the global order (a process)."""
