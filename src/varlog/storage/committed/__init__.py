"""Store of one replica (committed ordering): segments, index, commit rows."""
