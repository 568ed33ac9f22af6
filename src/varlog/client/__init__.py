"""Layer 3, what applications import: append, read, subscribe, trim; asynchronous, and blocking on top of it."""
