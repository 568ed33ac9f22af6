"""Store of one replica (committed ordering): segments, sparse index, commit rows, state."""
