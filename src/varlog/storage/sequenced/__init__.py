"""Store of one log unit (sequenced ordering): write-once pages and index."""
