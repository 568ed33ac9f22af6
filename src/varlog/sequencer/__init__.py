"""Layer 3, the sequencer: which position is next (sequenced ordering)."""
