"""Layer 2: bytes on disk. Synchronous, no network."""
