"""Layer 1: interfaces to the operating system, which a simulator can replace."""
