"""Layer 3, what applications import: append, read, subscribe, trim."""
